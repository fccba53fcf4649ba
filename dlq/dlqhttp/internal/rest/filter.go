package rest

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Query is a Filter in a URL, which is too short for as many ids as a body.
type Query struct {
	wire.Filter
	PayloadFields []string `query:"payload_fields,explode" nullable:"false" maxItems:"8" doc:"Fields of the JSON payload and their required values: customer.id=42. Lists are searched. Reads every payload that matches the other fields." example:"[\"customer.id=42\"]"`

	IDs      []int64       `query:"ids" nullable:"false" maxItems:"1000" doc:"These entries: 7,9,12."`
	Redrives optional[int] `query:"redrives" minimum:"0" maximum:"2147483647" doc:"Exact number of redrives."`
}

// filter is the filter of the parameters.
func (q *Query) filter() (*wire.Filter, error) {
	f := q.Filter
	for _, text := range q.PayloadFields {
		field, err := wire.ParsePayloadField(text)
		if err != nil {
			return nil, fmt.Errorf("payload_fields: %w", err)
		}
		f.PayloadFields = append(f.PayloadFields, field)
	}
	f.IDs = q.IDs
	if q.Redrives.set {
		f.Redrives = &q.Redrives.Value
	}
	return &f, nil
}

// allowed returns the filter of the parameters, which the caller may use.
func (q *Query) allowed(ctx context.Context, a *API) (dlq.Filter, error) {
	f, err := q.filter()
	if err != nil {
		return dlq.Filter{}, err
	}
	return a.filtered(ctx, f)
}

// filtered checks that the caller may use a filter.
func (a *API) filtered(ctx context.Context, f *dlq.Filter) (dlq.Filter, error) {
	if err := a.visible(ctx).Search(ctx, f); err != nil {
		return *f, err
	}
	return *f, f.Validate()
}

// picks refuses an empty filter: a bulk change never takes everything because something was forgotten.
func picks(f *dlq.Filter) error {
	if reflect.ValueOf(*f).IsZero() {
		return huma.NewError(http.StatusUnprocessableEntity,
			`body.filter: say which entries; {"statuses": ["PENDING"]} means all that wait`)
	}
	return nil
}

// optional is a query parameter that can be absent.
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
