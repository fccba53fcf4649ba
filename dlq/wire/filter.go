package wire

import (
	"time"
)

// Filter selects entries that match all of its fields. Absent fields do not filter.
type Filter struct {
	IDs            []int64   `json:"ids,omitempty" nullable:"false" maxItems:"10000" doc:"These entries."`
	Statuses       []string  `json:"statuses,omitempty" query:"status" nullable:"false" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Entries in any of these."`
	Topic          string    `json:"topic,omitempty" query:"topic" doc:"Topic that the message was consumed from."`
	Consumer       string    `json:"consumer,omitempty" query:"consumer" doc:"Queue or consumer group."`
	EventType      string    `json:"event_type,omitempty" query:"event_type"`
	Handler        string    `json:"handler,omitempty" query:"handler" doc:"Handler that gave up."`
	Reason         string    `json:"reason,omitempty" query:"reason" enum:"permanent,exhausted,malformed,expired,panic,manual,crash"`
	ErrorClass     string    `json:"error_class,omitempty" query:"error_class"`
	ErrorCode      string    `json:"error_code,omitempty" query:"error_code"`
	Fingerprint    string    `json:"fingerprint,omitempty" query:"fingerprint" doc:"Group."`
	EventID        string    `json:"event_id,omitempty" query:"event_id" doc:"Id of the message."`
	SourceTable    string    `json:"source_table,omitempty" query:"source_table"`
	SourceID       string    `json:"source_id,omitempty" query:"source_id"`
	CorrelationID  string    `json:"correlation_id,omitempty" query:"correlation_id"`
	TraceID        string    `json:"trace_id,omitempty" query:"trace_id" pattern:"^[0-9a-f]{32}$" doc:"W3C trace of the message. Reads all headers."`
	Error          string    `json:"error,omitempty" query:"error" doc:"Text that occurs in the error."`
	Payload        string    `json:"payload,omitempty" query:"payload" doc:"Text that occurs in the payload. Reads every payload that the rest leaves."`
	PayloadFields  []string  `json:"payload_fields,omitempty" query:"payload_fields,explode" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload with the values that they must have: customer.id=42. Lists are looked into. Reads every payload that the rest leaves." example:"[\"customer.id=42\"]"`
	Cause          string    `json:"cause,omitempty" query:"cause" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time `json:"from,omitzero" query:"from" doc:"Created at or after."`
	To             time.Time `json:"to,omitzero" query:"to" doc:"Created before."`
	ResolvedBefore time.Time `json:"resolved_before,omitzero" query:"resolved_before" doc:"Closed before."`
	DiedBefore     time.Time `json:"died_before,omitzero" query:"died_before" doc:"Last death before."`
	Redrives       *int      `json:"redrives,omitempty" minimum:"0" doc:"Redriven exactly so often."`
	Run            string    `json:"run,omitempty" query:"run" doc:"The redrive run that took the entry last."`
}
