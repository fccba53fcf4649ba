package client

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strings"
	"time"
)

// values encodes structs as the parameters of a query, without zero values.
func values(structs ...any) url.Values {
	q := url.Values{}
	for _, s := range structs {
		add(q, reflect.ValueOf(s))
	}
	return q
}

func add(q url.Values, v reflect.Value) {
	for i := range v.NumField() {
		declared := v.Type().Field(i)
		name, _, _ := strings.Cut(cmp.Or(declared.Tag.Get("query"), declared.Tag.Get("json")), ",")
		switch field := v.Field(i); {
		case declared.Anonymous:
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
