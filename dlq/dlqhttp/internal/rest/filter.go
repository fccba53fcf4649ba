package rest

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Query is a Filter in a URL, which is too short for as many ids as a body.
type Query struct {
	wire.Filter
	IDs      []int64       `query:"ids" nullable:"false" maxItems:"1000" doc:"These entries: 7,9,12."`
	Redrives optional[int] `query:"redrives" minimum:"0" maximum:"2147483647" doc:"Redriven exactly so often."`
}

// filter is the filter of the parameters.
func (q *Query) filter() *wire.Filter {
	f := q.Filter
	f.IDs = q.IDs
	if q.Redrives.set {
		f.Redrives = &q.Redrives.Value
	}
	return &f
}

// filtered reads a filter and checks that the caller may use it.
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
