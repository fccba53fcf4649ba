// Package redact hides restricted values of dead letters: in JSON payloads by their path, in headers by their name, and
// in free text by a pattern. The store keeps everything; the rules apply wherever something is shown.
//
//	rules, err := redact.New(redact.Config{
//		Paths:   []string{"$.card.number", "$..iban", "$.items[*].secret"},
//		Headers: []string{"authorization", "x-api-*"},
//		Texts:   []string{`\d{3}\.\d{3}\.\d{3}-\d{2}`},
//	})
//	shown := rules.Entry(entry) // a copy
//
// Paths are the part of JSONPath (RFC 9535) that selects locations: $, .name, ['name'], [0], [*] and .*, and .. for any
// depth. Selected values are replaced by the text "[redacted]", whatever their type; the bytes around them are not
// changed. With paths, a payload that is not JSON is hidden as a whole, because its content is unknown.
//
// Error messages, stack traces, notes and header values are free text, to which Texts apply and paths do not. The error
// of a run's jq expression quotes the payload, so with paths or texts it is hidden as a whole.
package redact
