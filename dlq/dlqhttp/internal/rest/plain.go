package rest

import (
	"math"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
)

// plain refuses what no store can hold, before the store is called: text with NUL or that is not UTF-8, numbers beyond
// 32 bits where a column has no more, and times outside of the years 1 to 9999. The response names each field, like
// every other validation. Fields with the tag bytes may have any bytes.
func plain(in any) error {
	var faults []error
	walk(reflect.ValueOf(in).Elem(), "", &faults)
	if len(faults) == 0 {
		return nil
	}
	return huma.NewError(http.StatusUnprocessableEntity, "validation failed", faults...)
}

var timeType = reflect.TypeFor[time.Time]()

// walk checks a value at a location in the request.
func walk(v reflect.Value, at string, faults *[]error) {
	fault := func(message string) { *faults = append(*faults, &huma.ErrorDetail{Location: at, Message: message}) }
	switch v.Kind() {
	case reflect.String:
		if !operations.Storable(v.String()) {
			fault("expected text in UTF-8 without NUL")
		}
	case reflect.Int:
		if n := v.Int(); n > math.MaxInt32 || n < math.MinInt32 {
			fault("expected number <= 2147483647")
		}
	case reflect.Pointer:
		if !v.IsNil() {
			walk(v.Elem(), at, faults)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walk(v.Index(i), at, faults)
		}
	case reflect.Struct:
		if v.Type() == timeType {
			if t, _ := reflect.TypeAssert[time.Time](v); t.UTC().Year() < 1 || t.UTC().Year() > 9999 {
				fault("expected a time of the years 1 to 9999")
			}
			return
		}
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("bytes") == "" {
				walk(v.Field(i), place(at, &field), faults)
			}
		}
	default: // numbers that any column holds, and what a handler reads as a stream
	}
}

// place is the location of a field in a request: query.topic, body.filter.topic.
func place(at string, field *reflect.StructField) string {
	for _, kind := range []string{"path", "query", "header"} {
		if name, _, _ := strings.Cut(field.Tag.Get(kind), ","); name != "" && at == "" { // a filter is in bodies too
			return kind + "." + name
		}
	}
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	switch {
	case name != "" && !field.Anonymous:
		return at + "." + name
	case at == "" && field.Name == "Body":
		return "body"
	default: // embedded, or the value of an optional parameter
		return at
	}
}
