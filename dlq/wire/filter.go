package wire

import (
	"time"
)

// Filter picks entries. What is not given does not filter; what is given is joined by "and".
type Filter struct {
	IDs            []int64   `json:"ids,omitempty" nullable:"false" maxItems:"10000" doc:"These entries."`
	Statuses       []string  `json:"statuses,omitempty" nullable:"false" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Entries in any of these."`
	Topic          string    `json:"topic,omitempty" doc:"Topic that the message was consumed from."`
	Consumer       string    `json:"consumer,omitempty" doc:"Queue or consumer group."`
	EventType      string    `json:"event_type,omitempty"`
	Handler        string    `json:"handler,omitempty" doc:"Handler that gave up."`
	Reason         string    `json:"reason,omitempty" enum:"permanent,exhausted,malformed,expired,panic,manual,crash"`
	ErrorClass     string    `json:"error_class,omitempty"`
	ErrorCode      string    `json:"error_code,omitempty"`
	Fingerprint    string    `json:"fingerprint,omitempty" doc:"Group."`
	EventID        string    `json:"event_id,omitempty" doc:"Id of the message."`
	SourceTable    string    `json:"source_table,omitempty"`
	SourceID       string    `json:"source_id,omitempty"`
	CorrelationID  string    `json:"correlation_id,omitempty"`
	TraceID        string    `json:"trace_id,omitempty" pattern:"^[0-9a-f]{32}$" doc:"W3C trace of the message. Reads all headers."`
	Error          string    `json:"error,omitempty" doc:"Text that occurs in the error."`
	Payload        string    `json:"payload,omitempty" doc:"Text that occurs in the payload. Reads every payload that the rest leaves."`
	PayloadFields  []string  `json:"payload_fields,omitempty" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload with the values that they must have: customer.id=42. Lists are looked into. Reads every payload that the rest leaves." example:"[\"customer.id=42\"]"`
	Cause          string    `json:"cause,omitempty" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time `json:"from,omitzero" doc:"Created at or after."`
	To             time.Time `json:"to,omitzero" doc:"Created before."`
	ResolvedBefore time.Time `json:"resolved_before,omitzero" doc:"Closed before."`
	DiedBefore     time.Time `json:"died_before,omitzero" doc:"Last death before."`
	Redrives       *int      `json:"redrives,omitempty" minimum:"0" doc:"Redriven exactly so often."`
	Run            string    `json:"run,omitempty" doc:"The redrive run that took the entry last."`
}
