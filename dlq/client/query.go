package client

import (
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Page asks for a part of a list. The zero Page is the first 50, the newest first.
type Page struct {
	Limit  int    `query:"limit"`
	Order  string `query:"order"` // newest or oldest
	Cursor string `query:"cursor"`
}

// GroupQuery asks for causes; see wire.Group.
type GroupQuery struct {
	Status      string    `query:"status"` // to rank by
	Handler     string    `query:"handler"`
	ErrorClass  string    `query:"error_class"`
	Cause       string    `query:"cause"` // text that occurs in it
	Fingerprint string    `query:"fingerprint"`
	TrendSince  time.Time `query:"trend_since"`
	Limit       int       `query:"limit"`
}

// StatsQuery asks for statistics.
type StatsQuery struct {
	Since     time.Time `query:"since"`
	TopCauses int       `query:"top_causes"`
}

// AuditQuery asks for audit records; a zero field does not filter.
type AuditQuery struct {
	EntryID int64     `query:"entry_id"`
	Run     string    `query:"run"`
	Actor   string    `query:"actor"`
	Action  string    `query:"action"`
	From    time.Time `query:"from"`
	To      time.Time `query:"to"`
	Fold    bool      `query:"fold"` // one record of those that say the same of entries of a run
}

// RunQuery asks for runs; a zero field does not filter.
type RunQuery struct {
	State     []string `query:"state"`
	CreatedBy string   `query:"created_by"`
	Active    bool     `query:"active"`
}

// ItemQuery asks for the entries of a run.
type ItemQuery struct {
	State string `query:"state"`
	After int64  `query:"after"`
	Limit int    `query:"limit"`
}

// values are the parameters of what asks, zero values left out.
func values(asked ...any) url.Values {
	q := url.Values{}
	for _, a := range asked {
		v := reflect.ValueOf(a)
		for i := range v.NumField() {
			name := v.Type().Field(i).Tag.Get("query")
			if name == "" {
				name, _, _ = strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			}
			if !v.Field(i).IsZero() {
				set(q, name, v.Field(i).Interface())
			}
		}
	}
	return q
}

// filterValues are a filter as parameters. One has another name there.
func filterValues(f *wire.Filter, more ...any) url.Values {
	q := values(append(more, *f)...)
	if statuses, ok := q["statuses"]; ok {
		q["status"] = statuses
		delete(q, "statuses")
	}
	return q
}

func set(q url.Values, name string, value any) {
	switch v := value.(type) {
	case string:
		q.Set(name, v)
	case bool:
		q.Set(name, strconv.FormatBool(v))
	case int:
		q.Set(name, strconv.Itoa(v))
	case *int:
		q.Set(name, strconv.Itoa(*v))
	case int64:
		q.Set(name, strconv.FormatInt(v, 10))
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
