package rest

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// Filter picks entries. What is not given does not filter; what is given is joined by "and".
type Filter struct {
	IDs            []int64      `json:"ids,omitempty" nullable:"false" maxItems:"10000" doc:"These entries."`
	Statuses       []dlq.Status `json:"statuses,omitempty" nullable:"false" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Entries in any of these."`
	Topic          string       `json:"topic,omitempty" doc:"Topic that the message was consumed from."`
	Consumer       string       `json:"consumer,omitempty" doc:"Queue or consumer group."`
	EventType      string       `json:"event_type,omitempty"`
	Handler        string       `json:"handler,omitempty" doc:"Handler that gave up."`
	Reason         string       `json:"reason,omitempty" enum:"permanent,exhausted,malformed,expired,panic,manual,crash"`
	ErrorClass     string       `json:"error_class,omitempty"`
	ErrorCode      string       `json:"error_code,omitempty"`
	Fingerprint    string       `json:"fingerprint,omitempty" doc:"Group."`
	EventID        string       `json:"event_id,omitempty" doc:"Id of the message."`
	SourceTable    string       `json:"source_table,omitempty"`
	SourceID       string       `json:"source_id,omitempty"`
	CorrelationID  string       `json:"correlation_id,omitempty"`
	Error          string       `json:"error,omitempty" doc:"Text that occurs in the error."`
	Payload        string       `json:"payload,omitempty" doc:"Text that occurs in the payload. Reads every payload that the rest leaves."`
	PayloadFields  []string     `json:"payload_fields,omitempty" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload with the values that they must have: customer.id=42. Lists are looked into. Reads every payload that the rest leaves." example:"[\"customer.id=42\"]"`
	Cause          string       `json:"cause,omitempty" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time    `json:"from,omitzero" doc:"Created at or after."`
	To             time.Time    `json:"to,omitzero" doc:"Created before."`
	ResolvedBefore time.Time    `json:"resolved_before,omitzero" doc:"Closed before."`
	DiedBefore     time.Time    `json:"died_before,omitzero" doc:"Last death before."`
	Redrives       *int         `json:"redrives,omitempty" minimum:"0" doc:"Redriven exactly so often."`
	Run            string       `json:"run,omitempty" doc:"The redrive run that took the entry last."`
}

func (f *Filter) filter() (dlq.Filter, error) {
	filter := dlq.Filter{
		IDs: f.IDs, Statuses: f.Statuses, Topic: f.Topic, Consumer: f.Consumer, EventType: f.EventType, Handler: f.Handler,
		Reason: envelope.Reason(f.Reason), ErrorClass: f.ErrorClass, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, EventID: f.EventID,
		SourceTable: f.SourceTable, SourceID: f.SourceID, CorrelationID: f.CorrelationID, ErrorText: f.Error, PayloadText: f.Payload,
		CauseText: f.Cause, From: f.From, To: f.To, ResolvedBefore: f.ResolvedBefore, DiedBefore: f.DiedBefore, Redrives: f.Redrives, Run: f.Run,
	}
	for _, text := range f.PayloadFields {
		field, err := dlq.ParsePayloadField(text)
		if err != nil {
			return filter, err
		}
		filter.PayloadFields = append(filter.PayloadFields, field)
	}
	return filter, nil
}

func filterOf(f *dlq.Filter) Filter {
	filter := Filter{
		IDs: f.IDs, Statuses: f.Statuses, Topic: f.Topic, Consumer: f.Consumer, EventType: f.EventType, Handler: f.Handler,
		Reason: string(f.Reason), ErrorClass: f.ErrorClass, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, EventID: f.EventID,
		SourceTable: f.SourceTable, SourceID: f.SourceID, CorrelationID: f.CorrelationID, Error: f.ErrorText, Payload: f.PayloadText,
		Cause: f.CauseText, From: f.From, To: f.To, ResolvedBefore: f.ResolvedBefore, DiedBefore: f.DiedBefore, Redrives: f.Redrives, Run: f.Run,
	}
	for _, field := range f.PayloadFields {
		filter.PayloadFields = append(filter.PayloadFields, field.String())
	}
	return filter
}

// Query is a Filter in a URL.
type Query struct {
	IDs            []int64       `query:"ids" nullable:"false" maxItems:"1000" doc:"These entries: 7,9,12."`
	Statuses       []string      `query:"status" nullable:"false" enum:"PENDING,RETRYING,PARKED,RESOLVED,DISCARDED" doc:"Entries in any of these: PENDING,PARKED."`
	Topic          string        `query:"topic" doc:"Topic that the message was consumed from."`
	Consumer       string        `query:"consumer" doc:"Queue or consumer group."`
	EventType      string        `query:"event_type"`
	Handler        string        `query:"handler" doc:"Handler that gave up."`
	Reason         string        `query:"reason" enum:"permanent,exhausted,malformed,expired,panic,manual,crash"`
	ErrorClass     string        `query:"error_class"`
	ErrorCode      string        `query:"error_code"`
	Fingerprint    string        `query:"fingerprint" doc:"Group."`
	EventID        string        `query:"event_id" doc:"Id of the message."`
	SourceTable    string        `query:"source_table"`
	SourceID       string        `query:"source_id"`
	CorrelationID  string        `query:"correlation_id"`
	Error          string        `query:"error" doc:"Text that occurs in the error."`
	Payload        string        `query:"payload" doc:"Text that occurs in the payload. Reads every payload that the rest leaves."`
	PayloadFields  []string      `query:"payload_fields,explode" nullable:"false" maxItems:"8" doc:"A field of the JSON payload with the value that it must have: customer.id=42. May be given several times. Lists are looked into. Reads every payload that the rest leaves."`
	Cause          string        `query:"cause" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time     `query:"from" doc:"Created at or after."`
	To             time.Time     `query:"to" doc:"Created before."`
	ResolvedBefore time.Time     `query:"resolved_before" doc:"Closed before."`
	DiedBefore     time.Time     `query:"died_before" doc:"Last death before."`
	Redrives       optional[int] `query:"redrives" minimum:"0" doc:"Redriven exactly so often."`
	Run            string        `query:"run" doc:"The redrive run that took the entry last."`
}

func (q *Query) filter() (dlq.Filter, error) {
	f := Filter{
		IDs: q.IDs, Topic: q.Topic, Consumer: q.Consumer, EventType: q.EventType, Handler: q.Handler, Reason: q.Reason, ErrorClass: q.ErrorClass,
		ErrorCode: q.ErrorCode, Fingerprint: q.Fingerprint, EventID: q.EventID, SourceTable: q.SourceTable, SourceID: q.SourceID,
		CorrelationID: q.CorrelationID, Error: q.Error, Payload: q.Payload, PayloadFields: q.PayloadFields, Cause: q.Cause, From: q.From, To: q.To,
		ResolvedBefore: q.ResolvedBefore, DiedBefore: q.DiedBefore, Run: q.Run,
	}
	for _, s := range q.Statuses {
		f.Statuses = append(f.Statuses, dlq.Status(s))
	}
	if q.Redrives.set {
		f.Redrives = &q.Redrives.Value
	}
	return f.filter()
}

// filtered reads a filter and checks that who asks may filter so: to search for what is hidden is to see it.
func (a *API) filtered(ctx context.Context, in interface{ filter() (dlq.Filter, error) }) (dlq.Filter, error) {
	f, err := in.filter()
	if err != nil {
		return f, err
	}
	if f.LooksIntoPayloads() && a.visible(ctx) != nil {
		return f, huma.NewError(http.StatusForbidden,
			"a search in payloads would find what you may not see: use the other fields, or ask somebody with the role "+a.cfg.RevealTo.String())
	}
	return f, f.Validate()
}

// picks refuses a filter that says nothing: a bulk change never takes all because something was forgotten.
func picks(f *dlq.Filter) error {
	if reflect.ValueOf(*f).IsZero() {
		return huma.NewError(http.StatusUnprocessableEntity,
			`body.filter: say which entries; {"statuses": ["PENDING"]} means all that wait`)
	}
	return nil
}

// optional is a query parameter of which it matters whether it was given.
type optional[T any] struct {
	Value T
	set   bool
}

// Schema is that of the value.
func (o optional[T]) Schema(r huma.Registry) *huma.Schema {
	return huma.SchemaFromType(r, reflect.TypeFor[T]())
}

// Receiver is where huma puts the value.
func (o *optional[T]) Receiver() reflect.Value { return reflect.ValueOf(o).Elem().Field(0) }

// OnParamSet tells whether it was given.
func (o *optional[T]) OnParamSet(set bool, _ any) { o.set = set }
