package client

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// values are the parameters of queries, without zero values.
func values(asked ...any) url.Values {
	q := url.Values{}
	for _, a := range asked {
		v := reflect.ValueOf(a)
		for i := range v.NumField() {
			tag := v.Type().Field(i).Tag
			name, _, _ := strings.Cut(cmp.Or(tag.Get("query"), tag.Get("json")), ",")
			if !v.Field(i).IsZero() {
				set(q, name, v.Field(i).Interface())
			}
		}
	}
	return q
}

func set(q url.Values, name string, value any) {
	switch v := value.(type) {
	case string, bool, int, int64:
		q.Set(name, fmt.Sprint(v))
	case *int:
		q.Set(name, strconv.Itoa(*v))
	case time.Time:
		q.Set(name, v.Format(time.RFC3339Nano))
	case []int64:
		list := make([]string, 0, len(v))
		for _, n := range v {
			list = append(list, strconv.FormatInt(n, 10))
		}
		q.Set(name, strings.Join(list, ","))
	case []string:
		if name == "payload_fields" { // a value may have a comma in it
			q[name] = v
			return
		}
		q.Set(name, strings.Join(v, ","))
	default:
		panic("dlq/client: parameter " + name + " of a type that is not one of a query")
	}
}
