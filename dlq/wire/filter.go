package wire

import (
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
