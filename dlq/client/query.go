package client

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// values are the parameters of queries, without zero values.
func values(asked ...any) url.Values {
	q := url.Values{}
	for _, a := range asked {
		add(q, reflect.ValueOf(a))
	}
	return q
}

func add(q url.Values, v reflect.Value) {
	for i := range v.NumField() {
		of := v.Type().Field(i)
		name, _, _ := strings.Cut(cmp.Or(of.Tag.Get("query"), of.Tag.Get("json")), ",")
		switch field := v.Field(i); {
		case of.Anonymous:
			add(q, field)
		case field.IsZero() || name == "":
		case name == "payload_fields": // a value may have a comma in it
			q[name] = texts(field)
		case field.Kind() == reflect.Slice:
			q.Set(name, strings.Join(texts(field), ","))
		default:
			q.Set(name, text(field))
		}
	}
}

func texts(list reflect.Value) []string {
	all := make([]string, list.Len())
	for i := range all {
		all[i] = text(list.Index(i))
	}
	return all
}

func text(v reflect.Value) string {
	if t, ok := reflect.TypeAssert[time.Time](v); ok {
		return t.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(reflect.Indirect(v).Interface())
}
