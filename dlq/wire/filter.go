package wire

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Filter selects entries. Its fields are combined with "and"; zero fields do not filter.
type Filter struct {
	// IDs selects nothing if it is empty and not nil, which is why it is in the JSON form even then.
	IDs           []int64  `json:"ids,omitzero" nullable:"false" maxItems:"10000" doc:"These entries."`
	Statuses      []Status `json:"statuses,omitempty" query:"status" nullable:"false" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Entries in any of these."`
	Topic         string   `json:"topic,omitempty" query:"topic" doc:"Topic that the message was consumed from."`
	Consumer      string   `json:"consumer,omitempty" query:"consumer" doc:"Queue or consumer group."`
	EventType     string   `json:"event_type,omitempty" query:"event_type"`
	Handler       string   `json:"handler,omitempty" query:"handler" doc:"Handler that gave up."`
	Reason        string   `json:"reason,omitempty" query:"reason" enum:"permanent,exhausted,malformed,expired,panic,manual,crash"`
	ErrorClass    string   `json:"error_class,omitempty" query:"error_class"`
	ErrorCode     string   `json:"error_code,omitempty" query:"error_code"`
	Fingerprint   string   `json:"fingerprint,omitempty" query:"fingerprint" doc:"Group."`
	EventID       string   `json:"event_id,omitempty" query:"event_id" doc:"Id of the message."`
	SourceTable   string   `json:"source_table,omitempty" query:"source_table"`
	SourceID      string   `json:"source_id,omitempty" query:"source_id"`
	CorrelationID string   `json:"correlation_id,omitempty" query:"correlation_id"`
	// TraceID and the texts are searched in every entry that matches the other fields, so combine them with those.
	TraceID string `json:"trace_id,omitempty" query:"trace_id" pattern:"^[0-9a-f]{32}$" doc:"W3C trace of the message. Reads all headers."`
	// ErrorText ignores case and Latin accents: "Zurich" finds "Zürich". PayloadText does not.
	ErrorText   string `json:"error,omitempty" query:"error" doc:"Text that occurs in the error."`
	PayloadText string `json:"payload,omitempty" query:"payload" doc:"Text that occurs in the payload. Reads every payload that matches the other fields."`
	// PayloadFields must all have their values in a JSON payload; a store may have an index for them.
	PayloadFields []PayloadField `json:"payload_fields,omitempty" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload and their required values: customer.id=42. Lists are searched. Reads every payload that matches the other fields." example:"[\"customer.id=42\"]"`
	// CauseText is looked up among the groups, ignores case and accents too, and cannot match numbers, ids and quoted
	// values.
	CauseText      string    `json:"cause,omitempty" query:"cause" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time `json:"from,omitzero" query:"from" doc:"Created at or after."`
	To             time.Time `json:"to,omitzero" query:"to" doc:"Created before."`
	ResolvedBefore time.Time `json:"resolved_before,omitzero" query:"resolved_before" doc:"Closed before."`
	DiedBefore     time.Time `json:"died_before,omitzero" query:"died_before" doc:"Last death before."`
	Redrives       *int      `json:"redrives,omitempty" minimum:"0" doc:"Exact number of redrives."`
	Run            string    `json:"run,omitempty" query:"run" doc:"The redrive run that claimed the entry last."`
}

// Texts are the fields whose values are free text, by their names in JSON. Fingerprint and the fields that look into
// payloads are not among them.
func (f *Filter) Texts() map[string]*string {
	return map[string]*string{
		"topic": &f.Topic, "consumer": &f.Consumer, "event_type": &f.EventType, "handler": &f.Handler,
		"error_class": &f.ErrorClass, "error_code": &f.ErrorCode, "event_id": &f.EventID, "source_table": &f.SourceTable,
		"source_id": &f.SourceID, "correlation_id": &f.CorrelationID, "trace_id": &f.TraceID, "error": &f.ErrorText,
		"cause": &f.CauseText,
	}
}

// Validate reports what is wrong with the filter; the error wraps [ErrInvalid].
func (f *Filter) Validate() error {
	if err := f.validateValues(); err != nil {
		return err
	}
	for _, s := range f.Statuses {
		if !s.Valid() {
			return fmt.Errorf("%w: unknown status %q: one of %s", ErrInvalid, s, joinStatuses())
		}
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		return fmt.Errorf("%w: empty time range: from %s is not before to %s", ErrInvalid,
			f.From.Format(time.RFC3339), f.To.Format(time.RFC3339))
	}
	if len(f.PayloadFields) > maxPayloadFields {
		return fmt.Errorf("%w: %d payload fields: at most %d", ErrInvalid, len(f.PayloadFields), maxPayloadFields)
	}
	for _, field := range f.PayloadFields {
		if err := field.validate(); err != nil {
			return err
		}
	}
	return nil
}

// Freeze excludes entries created after now, so that a change applies to the entries that were counted and shown, not
// to later ones. The limit is a whole second, as in URLs: that of now is included. A choice of IDs is fixed already.
func (f *Filter) Freeze(now time.Time) {
	end := now.UTC().Truncate(time.Second).Add(time.Second)
	if len(f.IDs) == 0 && (f.To.IsZero() || f.To.After(end)) {
		f.To = end
	}
}

// traceID is how W3C writes the id of a trace.
var traceID = regexp.MustCompile("^[0-9a-f]{32}$")

// ReadsBodies reports whether matching has to read bodies, one by one, which is slow.
func (f *Filter) ReadsBodies() bool { return f.LooksIntoPayloads() || f.TraceID != "" }

// validateValues refuses values that no store contains: text with NUL or that is not UTF-8, a number beyond 32 bits. A
// payload is bytes, and may contain anything.
func (f *Filter) validateValues() error {
	for name, value := range f.Texts() {
		if err := checkText(name, *value); err != nil {
			return err
		}
	}
	for name, value := range map[string]string{"reason": f.Reason, "fingerprint": f.Fingerprint, "run": f.Run} {
		if err := checkText(name, value); err != nil {
			return err
		}
	}
	if f.TraceID != "" && !traceID.MatchString(f.TraceID) {
		return fmt.Errorf("%w: trace_id %.80q: 32 hexadecimal digits", ErrInvalid, f.TraceID)
	}
	if f.Redrives != nil && (*f.Redrives < 0 || *f.Redrives > math.MaxInt32) {
		return fmt.Errorf("%w: redrives: a number from 0 to %d", ErrInvalid, math.MaxInt32)
	}
	return nil
}

func checkText(name, value string) error {
	if strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
		return fmt.Errorf("%w: %s: expected text in UTF-8 without NUL", ErrInvalid, name)
	}
	return nil
}

// LooksIntoPayloads reports whether the filter reveals something about payloads, which callers who may not see them
// must not use.
func (f *Filter) LooksIntoPayloads() bool { return f.PayloadText != "" || len(f.PayloadFields) > 0 }

// MaxPage is the maximum number of entries in a page.
const MaxPage = 1000

// Order is the order of a listing: by CreatedAt and ID, or by ID alone, which is the order of storing. Entries stored
// late, from a spool or an export, are far back in the first and at the end of the second.
type Order string

const (
	// NewestFirst is the default.
	NewestFirst Order = "newest"
	// OldestFirst is the order in which messages died.
	OldestFirst Order = "oldest"
	// StoredFirst is the order of storing, for readers that follow the store.
	StoredFirst Order = "stored-first"
	// StoredLast is the reverse of StoredFirst.
	StoredLast Order = "stored-last"
)

// orders are all orders, with their letters in cursors.
var orders = map[Order]byte{NewestFirst: 'n', OldestFirst: 'o', StoredFirst: 's', StoredLast: 'l'}

// Ascending reports whether the earliest comes first.
func (o Order) Ascending() bool { return o == OldestFirst || o == StoredFirst }

// ByID reports whether it is the order of storing, in either direction.
func (o Order) ByID() bool { return o == StoredFirst || o == StoredLast }

// Page selects a part of a listing. The zero Page is the first 50 entries, newest first.
type Page struct {
	Limit int   `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"Maximum number."`
	Order Order `query:"order" enum:"newest,oldest,stored-first,stored-last" default:"newest"`
	// After is the Next of the previous page. Empty for the first page.
	After string `query:"cursor" maxLength:"200" doc:"The next of the previous page."`
}

// Cursor is a position in a listing: after the entry with this CreatedAt and ID.
type Cursor struct {
	Order Order
	At    time.Time
	ID    int64
}

// Resolve fills in the page's defaults and reads its cursor, which is nil for the first page. Faults are reported as
// [ErrInvalid].
func (p Page) Resolve() (Page, *Cursor, error) {
	p.Limit, p.Order = cmp.Or(p.Limit, 50), cmp.Or(p.Order, NewestFirst)
	if p.Limit < 1 || p.Limit > MaxPage {
		return p, nil, fmt.Errorf("%w: page limit %d: from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	}
	if orders[p.Order] == 0 {
		return p, nil, fmt.Errorf("%w: unknown order %q: %s, %s, %s or %s", ErrInvalid, p.Order,
			NewestFirst, OldestFirst, StoredFirst, StoredLast)
	}
	if p.After == "" {
		return p, nil, nil
	}
	c, err := parseCursor(p.After)
	if err != nil {
		return p, nil, err
	}
	if c.Order != p.Order {
		return p, nil, fmt.Errorf("%w: the cursor belongs to a listing with order %q, not %q", ErrInvalid, c.Order, p.Order)
	}
	return p, &c, nil
}

const (
	cursorVersion = 1
	cursorSize    = 1 + 1 + 8 + 8
)

// String is the cursor for [Page.After]: opaque, and safe in a URL.
func (c Cursor) String() string {
	raw := make([]byte, 0, cursorSize)
	raw = append(raw, cursorVersion, orders[cmp.Or(c.Order, NewestFirst)])
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.At.UnixMicro()))
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.ID)) //nolint:gosec // bits, read back as they are
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseCursor(text string) (Cursor, error) {
	foreign := fmt.Errorf("%w: cursor %.40q was not made by this store: begin with the first page", ErrInvalid, text)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != cursorSize || raw[0] != cursorVersion {
		return Cursor{}, foreign
	}
	c := Cursor{
		At: time.UnixMicro(int64(binary.BigEndian.Uint64(raw[2:]))).UTC(), //nolint:gosec // bits
		ID: int64(binary.BigEndian.Uint64(raw[10:])),                      //nolint:gosec // bits
	}
	for order, letter := range orders {
		if raw[1] == letter {
			c.Order = order
		}
	}
	if c.Order == "" || c.At.Year() < 1 || c.At.Year() > 9999 { // never made by a store
		return Cursor{}, foreign
	}
	return c, nil
}

// Limits of a filter's payload fields.
const (
	maxPayloadFields     = 8
	maxPayloadPath       = 16
	maxPayloadFieldBytes = 1 << 10
)

// PayloadField is a field of a JSON payload and its required value: "customer.id=42". In JSON it is that text.
//
// Arrays on the path and at its end are searched: "items.sku=A-7" selects an order in which one item has it. A payload
// that is not JSON has no fields.
type PayloadField struct {
	// Path are the names on the path to the field, the outermost first.
	Path []string
	// Value is a string, or JSON: 42 matches both the number and the string of these digits, "42" in quotes only the
	// string. Numbers are compared by value, texts exactly.
	Value string
}

// ParsePayloadField reads "customer.id=42". A name with a dot, an equals sign, or a space at either end must be quoted:
// "a.b".c=1. Spaces around the sign and a leading "$." or "." are ignored. The error wraps [ErrInvalid].
func ParsePayloadField(text string) (PayloadField, error) {
	invalid := func(what string) (PayloadField, error) {
		return PayloadField{}, fmt.Errorf("%w: payload field %q: %s: such as customer.id=42", ErrInvalid, text, what)
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), "$"), ".")
	var f PayloadField
	for {
		var name string
		var after byte
		if name, after, rest = cutName(rest); name == "" {
			return invalid("a name is missing")
		}
		f.Path = append(f.Path, name)
		if after == '=' {
			break
		}
		if after != '.' {
			return invalid("the value is missing")
		}
	}
	f.Value = strings.TrimSpace(strings.TrimPrefix(rest, "=")) // accept == for =
	return f, f.validate()
}

// cutName cuts the first name off a path, and returns the byte after it: a dot, an equals sign, or 0 if neither
// follows.
func cutName(path string) (name string, after byte, rest string) {
	path = strings.TrimSpace(path)
	if strings.HasPrefix(path, `"`) {
		if end := strings.IndexByte(path[1:], '"'); end >= 0 {
			name, path = path[1:1+end], strings.TrimSpace(path[2+end:])
			if path != "" && (path[0] == '.' || path[0] == '=') {
				return name, path[0], path[1:]
			}
			return name, 0, ""
		}
	}
	end := strings.IndexAny(path, ".=")
	if end < 0 {
		return path, 0, ""
	}
	return strings.TrimSpace(path[:end]), path[end], path[end+1:]
}

// String is the text that [ParsePayloadField] reads.
func (f PayloadField) String() string {
	names := make([]string, len(f.Path))
	for i, name := range f.Path {
		names[i] = name
		if name == "" || strings.ContainsAny(name, ".=") || strings.TrimSpace(name) != name || i == 0 && name[0] == '$' {
			names[i] = `"` + name + `"`
		}
	}
	value := f.Value
	if strings.HasPrefix(value, "=") || strings.TrimSpace(value) != value {
		value = quoted(value)
	}
	return strings.Join(names, ".") + "=" + value
}

// MarshalText is [PayloadField.String].
func (f PayloadField) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText is [ParsePayloadField].
func (f *PayloadField) UnmarshalText(text []byte) (err error) {
	*f, err = ParsePayloadField(string(text))
	return err
}

// Alternatives are the JSON scalars of which the field must be one: stores compare with these.
func (f PayloadField) Alternatives() []string {
	text := quoted(f.Value)
	if !json.Valid([]byte(f.Value)) || strings.ContainsAny(f.Value[:1], "{[") {
		return []string{text}
	}
	if f.Value[0] == '"' {
		var text string
		_ = json.Unmarshal([]byte(f.Value), &text) // it is valid; half a surrogate, which no database accepts, is replaced
		return []string{quoted(text)}
	}
	return []string{f.Value, text}
}

func quoted(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		return `""` // cannot happen for a string
	}
	return string(data)
}

func (f PayloadField) validate() error {
	size := len(f.Value)
	for _, name := range f.Path {
		size += len(name)
		if name == "" || !utf8.ValidString(name) ||
			strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) {
			return fmt.Errorf("%w: payload field: the name %q: names must not contain quotes, backslashes and control "+
				"characters", ErrInvalid, name)
		}
	}
	switch {
	case len(f.Path) == 0:
		return fmt.Errorf("%w: payload field: the path is missing: such as customer.id=42", ErrInvalid)
	case len(f.Path) > maxPayloadPath || size > maxPayloadFieldBytes:
		return fmt.Errorf("%w: payload field: at most %d names and %d bytes", ErrInvalid, maxPayloadPath,
			maxPayloadFieldBytes)
	case !utf8.ValidString(f.Value) || strings.ContainsRune(f.Value, 0) || strings.Contains(f.Value, `\u0000`):
		return fmt.Errorf("%w: payload field: the value %q: a text in UTF-8 without NUL", ErrInvalid, f.Value)
	}
	if _, exponent, found := strings.Cut(strings.ToLower(f.Value), "e"); found && len(exponent) > 3 &&
		json.Valid([]byte(f.Value)) && f.Value[0] != '"' &&
		f.Value != "false" {
		return fmt.Errorf("%w: payload field: the number %s is out of range", ErrInvalid, f.Value)
	}
	return nil
}
