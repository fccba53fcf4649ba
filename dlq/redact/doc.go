// Package redact hides what not everybody may see of dead letters: values in JSON payloads by their path, headers by
// their name, and pieces of free text by a pattern. The store keeps everything; the rules are applied where something
// is shown.
//
//	rules, err := redact.New(redact.Config{
//		Paths:   []string{"$.card.number", "$..iban", "$.items[*].secret"},
//		Headers: []string{"authorization", "x-api-*"},
//		Texts:   []string{`\d{3}\.\d{3}\.\d{3}-\d{2}`},
//	})
//	shown := rules.Entry(entry) // a copy
//
// Paths are the part of JSONPath (RFC 9535) that names places: $, .name, ['name'], [0], [*] and .*, and .. for any
// depth. What is found is replaced by the text "[redacted]", whatever its type; the bytes around it stay as they are.
// Where there are paths, a payload that is not JSON is hidden as a whole, because its content is unknown.
//
// Error messages, stack traces, notes and header values are free text: a path says nothing about them, Texts does.
package redact
