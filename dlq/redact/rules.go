package redact

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/envelope"
)

// Mask replaces hidden values.
const Mask = "[redacted]"

// Config specifies which values are hidden. The zero Config hides nothing.
type Config struct {
	// Paths are locations in JSON payloads, see the package comment.
	Paths []string
	// Headers are names of headers, in any letter case; * matches any characters. They hide the fields of entries that
	// are read from these headers, too: correlation_id hides the correlation id.
	Headers []string
	// Texts are regular expressions (RE2) whose matches are hidden in error messages, causes, stack traces, notes, header
	// values and other free text, including payloads.
	Texts []string
}

// Rules hide what a [Config] names. They are safe for concurrent use and never change their input. Nil Rules hide
// nothing.
type Rules struct {
	paths   []location
	headers []string
	fields  map[string]bool // of entries, by their names in JSON: hidden with the header that they are read from
	texts   []*regexp.Regexp
}

// New compiles rules. The error names every invalid one.
func New(cfg Config) (*Rules, error) {
	var (
		r    Rules
		errs []error
	)
	for _, text := range cfg.Paths {
		p, err := parsePath(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("path %q: %w", text, err))
		}
		r.paths = append(r.paths, p)
	}
	for _, name := range cfg.Headers {
		if _, err := path.Match(name, ""); err != nil || name == "" {
			errs = append(errs, fmt.Errorf("header %q: expected a name, in which * matches any characters", name))
		}
		r.headers = append(r.headers, headerName(name))
	}
	for _, text := range cfg.Texts {
		pattern, err := regexp.Compile(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("text %q: %w", text, err))
		case pattern.MatchString(""):
			errs = append(errs, fmt.Errorf("text %q: it matches the empty text, and would hide everything", text))
		default:
			r.texts = append(r.texts, pattern)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	r.fields = map[string]bool{
		"event_id":       r.hidesAny(envelope.KeyMessageID, envelope.KeyAMQPMessageID),
		"uuid":           r.hidesAny(envelope.KeyMessageID, envelope.KeyAMQPMessageID), // mostly the same
		"event_type":     r.hidesAny(envelope.EventKeys()...),
		"source_table":   r.hidesAny("source_table"),
		"source_id":      r.hidesAny("source_id"),
		"correlation_id": r.hidesAny(envelope.KeyCorrelationID, envelope.KeyAMQPCorrelationID),
		"exchange":       r.hidesAny(envelope.KeyExchange),
		"routing_key":    r.hidesAny(envelope.KeyRoutingKey),
		"message_key":    r.hidesAny(envelope.KeyKafkaKey),
		"content_type":   r.hidesAny(envelope.KeyContentType, envelope.KeyAMQPContentType, envelope.KeyDataContentType),
		"trace_id":       r.hidesAny(envelope.KeyTraceParent), // only searched for
	}
	return &r, nil
}

// Empty reports whether the rules hide nothing.
func (r *Rules) Empty() bool {
	return r == nil || len(r.paths)+len(r.headers)+len(r.texts) == 0
}

// HidesText reports whether there are patterns.
func (r *Rules) HidesText() bool { return r != nil && len(r.texts) > 0 }

// Text hides what the patterns match in a text, as it is written or with the escapes of JSON and URLs resolved. With
// patterns, text that is not valid UTF-8 is hidden as a whole: it may have another encoding.
func (r *Rules) Text(text string) string {
	if !r.HidesText() {
		return text
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return Mask
	}
	meant, at := unescaped(text)
	var found [][]int
	for _, pattern := range r.texts {
		found = append(found, pattern.FindAllStringIndex(text, -1)...)
		for _, match := range pattern.FindAllStringIndex(meant, -1) {
			found = append(found, []int{at[match[0]], at[match[1]]})
		}
	}
	slices.SortFunc(found, slices.Compare)
	var shown strings.Builder
	end := 0
	for _, match := range found {
		if match[0] >= end {
			shown.WriteString(text[end:match[0]] + Mask)
		}
		end = max(end, match[1])
	}
	shown.WriteString(text[end:])
	return shown.String()
}

var escape = regexp.MustCompile(`\\+u[0-9a-fA-F]{4}|%(?:25)*[0-9a-fA-F]{2}`)

// unescaped is text with its escapes resolved, no matter how often it was escaped, and where each of its bytes is in
// text; empty if nothing is escaped. Halves of surrogate pairs are left as they are.
func unescaped(text string) (meant string, at []int) {
	escapes := escape.FindAllStringIndex(text, -1)
	if len(escapes) == 0 {
		return "", nil
	}
	out, end := make([]byte, 0, len(text)), 0
	for _, e := range append(escapes, []int{len(text), len(text)}) {
		for ; end < e[0]; end++ {
			out, at = append(out, text[end]), append(at, end)
		}
		digits := text[max(e[0], e[1]-2):e[1]]
		if strings.HasPrefix(text[e[0]:], `\`) {
			digits = text[e[1]-4 : e[1]]
		}
		code, err := strconv.ParseUint(digits, 16, 16)
		switch char := rune(code); {
		case err != nil || !utf8.ValidRune(char): // the end, or half of a pair
			continue
		case len(digits) == 2:
			out = append(out, byte(code)) //nolint:gosec // two digits
		default:
			out = utf8.AppendRune(out, char)
		}
		for len(at) < len(out) {
			at = append(at, e[0])
		}
		end = e[1]
	}
	return string(out), append(at, len(text))
}

// Header is the visible part of a header's value.
func (r *Rules) Header(name, value string) string {
	if r.hides(name) {
		return Mask
	}
	return r.Text(value)
}

// Field is the visible part of a field of an entry, by its name in JSON: nothing of one that is read from a hidden
// header.
func (r *Rules) Field(name, value string) string {
	if value != "" && r != nil && r.fields[name] {
		return Mask
	}
	return r.Text(value)
}

func (r *Rules) hidesAny(headers ...string) bool { return slices.ContainsFunc(headers, r.hides) }

func (r *Rules) hides(header string) bool {
	if r == nil {
		return false
	}
	header = headerName(header)
	return slices.ContainsFunc(r.headers, func(pattern string) bool {
		matched, err := path.Match(pattern, header)
		return err == nil && matched || pattern == header
	})
}

// headerName is a header's name, or a pattern of names, as they are compared: path.Match treats slashes separately.
func headerName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "/", "_") }

// Headers is a copy of the visible headers. Nil stays nil.
func (r *Rules) Headers(headers map[string]string) map[string]string {
	shown := maps.Clone(headers)
	if r.Empty() {
		return shown
	}
	for name, value := range shown {
		shown[name] = r.Header(name, value)
	}
	return shown
}

// LogAttr is a slog.HandlerOptions.ReplaceAttr that redacts log records: each attribute like a header of its name, a
// map of headers by their names, and anything else by what it looks like as text. Paths do not apply to logs.
func (r *Rules) LogAttr(_ []string, a slog.Attr) slog.Attr {
	if r.Empty() || a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.SourceKey {
		return a
	}
	if r.hides(a.Key) {
		return slog.String(a.Key, Mask)
	}
	if a.Value.Kind() != slog.KindString && a.Value.Kind() != slog.KindAny {
		return a // numbers and times are only hidden by name
	}
	if headers, ok := a.Value.Any().(map[string]string); ok {
		return slog.Any(a.Key, r.Headers(headers))
	}
	text := fmt.Sprint(a.Value.Any())
	switch v := a.Value.Any().(type) {
	case string, error:
	case []byte:
		text = string(v)
	default: // a JSON handler also shows what is behind pointers
		if data, err := json.Marshal(v); err == nil && r.Text(text) == text {
			text = string(data)
		}
	}
	if shown := r.Text(text); shown != text {
		return slog.String(a.Key, shown)
	}
	return a
}
