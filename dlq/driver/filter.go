package driver

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redrive-go/redrive/envelope"
)

// Filter selects entries. Its fields are combined with "and"; zero fields do not filter.
type Filter struct {
	// IDs selects these entries.
	IDs []int64 `json:"ids,omitzero"`
	// Statuses selects entries in any of them.
	Statuses []Status `json:"statuses,omitzero"`
	// Topic, Consumer, EventType, Handler, Reason, ErrorClass, ErrorCode and Fingerprint must be equal.
	Topic       string          `json:"topic,omitzero"`
	Consumer    string          `json:"consumer,omitzero"`
	EventType   string          `json:"event_type,omitzero"`
	Handler     string          `json:"handler,omitzero"`
	Reason      envelope.Reason `json:"reason,omitzero"`
	ErrorClass  string          `json:"error_class,omitzero"`
	ErrorCode   string          `json:"error_code,omitzero"`
	Fingerprint string          `json:"fingerprint,omitzero"`
	// EventID, SourceTable, SourceID and CorrelationID must be equal.
	EventID       string `json:"event_id,omitzero"`
	SourceTable   string `json:"source_table,omitzero"`
	SourceID      string `json:"source_id,omitzero"`
	CorrelationID string `json:"correlation_id,omitzero"`
	// TraceID selects entries whose message belongs to this W3C trace: 32 hexadecimal digits. It reads the headers of
	// every entry that matches the other fields.
	TraceID string `json:"trace_id,omitzero"`
	// ErrorText must occur in the error message, PayloadText in the payload. Case and Latin accents matter in the payload,
	// but not in the error or in CauseText: "Zurich" finds "Zürich". PayloadText reads every payload that matches the
	// other fields, so combine it with them.
	ErrorText   string `json:"error_text,omitzero"`
	PayloadText string `json:"payload_text,omitzero"`
	// PayloadFields must all have their values in a JSON payload. They are searched like PayloadText; a store may have an
	// index for them.
	PayloadFields []PayloadField `json:"payload_fields,omitzero"`
	// CauseText must occur in the group's normalized error. It is looked up among the groups, so it is fast on any table
	// size, but it cannot match numbers, ids and quoted values.
	CauseText string `json:"cause_text,omitzero"`
	// From and To bound CreatedAt: at or after From, before To.
	From time.Time `json:"from,omitzero"`
	To   time.Time `json:"to,omitzero"`
	// ResolvedBefore selects entries that were closed before it.
	ResolvedBefore time.Time `json:"resolved_before,omitzero"`
	// DiedBefore selects entries whose last death was before it.
	DiedBefore time.Time `json:"died_before,omitzero"`
	// Redrives, unless nil, selects entries that were redriven exactly this often.
	Redrives *int `json:"redrives,omitzero"`
	// Run selects the entries that this redrive run claimed last.
	Run string `json:"run,omitzero"`
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

// traceID is how W3C writes the id of a trace.
var traceID = regexp.MustCompile("^[0-9a-f]{32}$")

// ReadsBodies reports whether matching has to read bodies, one by one, which is slow.
func (f *Filter) ReadsBodies() bool { return f.LooksIntoPayloads() || f.TraceID != "" }

// validateValues refuses values that no store contains: text with NUL or that is not UTF-8, a number beyond 32 bits. A
// payload is bytes, and may contain anything.
func (f *Filter) validateValues() error {
	for name, value := range map[string]string{
		"topic": f.Topic, "consumer": f.Consumer, "event_type": f.EventType, "handler": f.Handler, "reason": string(f.Reason),
		"error_class": f.ErrorClass, "error_code": f.ErrorCode, "fingerprint": f.Fingerprint, "event_id": f.EventID,
		"source_table": f.SourceTable, "source_id": f.SourceID, "correlation_id": f.CorrelationID, "error": f.ErrorText,
		"cause": f.CauseText, "run": f.Run,
	} {
		if strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
			return fmt.Errorf("%w: %s: expected text in UTF-8 without NUL", ErrInvalid, name)
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

// LooksIntoPayloads reports whether the filter reveals something about payloads, which callers who may not see them
// must not use.
func (f *Filter) LooksIntoPayloads() bool { return f.PayloadText != "" || len(f.PayloadFields) > 0 }

// ValidateTexts refuses texts that no stored entry can have, and that some databases reject in every query: a listing
// with one finds nothing, but what stores a filter, such as a redrive run, must not store one.
func (f *Filter) ValidateTexts() error {
	for name, text := range f.texts() {
		if strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return fmt.Errorf("%w: %s %.80q: expected text in UTF-8 without NUL", ErrInvalid, name, text)
		}
	}
	return nil
}

// texts are the fields that a store compares with text columns. PayloadText is not one: payloads are arbitrary bytes.
func (f *Filter) texts() map[string]string {
	return map[string]string{
		"topic": f.Topic, "consumer": f.Consumer, "event type": f.EventType, "handler": f.Handler, "reason": string(f.Reason),
		"error class": f.ErrorClass, "error code": f.ErrorCode, "fingerprint": f.Fingerprint, "event id": f.EventID,
		"source table": f.SourceTable, "source id": f.SourceID, "correlation id": f.CorrelationID, "error text": f.ErrorText,
		"cause text": f.CauseText, "run": f.Run,
	}
}
