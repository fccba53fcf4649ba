package rest

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/mirror"
	"github.com/redrive-go/redrive/dlq/wire"
)

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
	TraceID        string        `query:"trace_id" pattern:"^[0-9a-f]{32}$" doc:"W3C trace of the message. Reads all headers."`
	Error          string        `query:"error" doc:"Text that occurs in the error."`
	Payload        string        `query:"payload" doc:"Text that occurs in the payload. Reads every payload that the rest leaves."`
	PayloadFields  []string      `query:"payload_fields,explode" nullable:"false" maxItems:"8" doc:"A field of the JSON payload with the value that it must have: customer.id=42. May be given several times. Lists are looked into. Reads every payload that the rest leaves."`
	Cause          string        `query:"cause" doc:"Text that occurs in the group's normalized error. Fast on any table size."`
	From           time.Time     `query:"from" doc:"Created at or after."`
	To             time.Time     `query:"to" doc:"Created before."`
	ResolvedBefore time.Time     `query:"resolved_before" doc:"Closed before."`
	DiedBefore     time.Time     `query:"died_before" doc:"Last death before."`
	Redrives       optional[int] `query:"redrives" minimum:"0" maximum:"2147483647" doc:"Redriven exactly so often."`
	Run            string        `query:"run" doc:"The redrive run that took the entry last."`
}

var queries = mirror.New[wire.Filter, Query](map[string]string{"Redrives": ""})

// filter is the filter that the parameters say.
func (q *Query) filter() *wire.Filter {
	f := queries.From(q)
	if q.Redrives.set {
		f.Redrives = &q.Redrives.Value
	}
	return &f
}

// filtered reads a filter and checks that the caller may filter so.
func (a *API) filtered(ctx context.Context, w *wire.Filter) (dlq.Filter, error) {
	var f dlq.Filter
	if err := f.SetWire(w); err != nil {
		return f, err
	}
	if err := a.visible(ctx).Search(ctx, &f); err != nil {
		return f, err
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

// OnParamSet reports whether it was given.
func (o *optional[T]) OnParamSet(set bool, _ any) { o.set = set }
