package sqlstore

import (
	"bytes"
	"cmp"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// column is a column of dlq_entries: which field of an entry it has, and how that is read, compared and sent.
// Everything in this package that names the columns is derived from the list below.
type column struct {
	name string
	// archive is its name in dlq_events and in the archive, if different.
	archive string
	// kind is PostgreSQL's type.
	kind string
	// state means that it changes after the first death. A counted column changes by adding, so that one UPDATE can
	// change entries with different values.
	state, counted bool
	// derived means that PostgreSQL's functions for new letters compute it from the other columns.
	derived bool

	// value is an entry's value as a parameter.
	value func(d dialect, e *dlq.Entry) any
	// dest is where Scan writes the value.
	dest func(e *dlq.Entry) any
	// same compares the field of two entries. Most columns do not change, and no value is made for them.
	same func(a, b *dlq.Entry) bool
}

// columns are those of dlq_entries except id, in the order of the statements.
var columns = []column{
	{
		name: "dedup_key", kind: "bytea", value: func(_ dialect, e *dlq.Entry) any { return e.Key[:] },
		dest: func(e *dlq.Entry) any { return keyValue{&e.Key} },
	},
	plain("event_id", func(e *dlq.Entry) *string { return &e.EventID }),
	plain("event_type", func(e *dlq.Entry) *string { return &e.EventType }),
	textOrNull("source_table", func(e *dlq.Entry) *string { return &e.SourceTable }),
	textOrNull("source_id", func(e *dlq.Entry) *string { return &e.SourceID }),
	textOrNull("correlation_id", func(e *dlq.Entry) *string { return &e.CorrelationID }).archivedAs("correlation"),
	plain("broker", func(e *dlq.Entry) *string { return &e.Origin.Broker }),
	plain("topic", func(e *dlq.Entry) *string { return &e.Origin.Topic }),
	plain("consumer", func(e *dlq.Entry) *string { return &e.Origin.Consumer }),
	plain("handler", func(e *dlq.Entry) *string { return &e.Handler }).mutable(),
	textOrNull("exchange", func(e *dlq.Entry) *string { return &e.Origin.Exchange }),
	bytesOrNull("routing_key", func(e *dlq.Entry) *string { return &e.Origin.RoutingKey }),
	bytesOrNull("message_key", func(e *dlq.Entry) *[]byte { return &e.Origin.Key }),
	integerOrNull("kafka_partition", "integer", func(e *dlq.Entry) **int32 { return &e.Origin.Partition }),
	integerOrNull("kafka_offset", "bigint", func(e *dlq.Entry) **int64 { return &e.Origin.Offset }),
	textOrNull("position", func(e *dlq.Entry) *string { return &e.Origin.Position }),
	timeOf("broker_time", func(e *dlq.Entry) *time.Time { return &e.Origin.Timestamp }),
	plain("reason", func(e *dlq.Entry) *envelope.Reason { return &e.Reason }).mutable(),
	plain("error_message", func(e *dlq.Entry) *string { return &e.ErrorMessage }).mutable(),
	textOrNull("error_code", func(e *dlq.Entry) *string { return &e.ErrorCode }).mutable(),
	textOrNull("error_class", func(e *dlq.Entry) *string { return &e.ErrorClass }).mutable(),
	textOrNull("rule", func(e *dlq.Entry) *string { return &e.Rule }).mutable(),
	plain("fingerprint", func(e *dlq.Entry) *string { return &e.Fingerprint }).mutable(),
	integer("attempts", "integer", func(e *dlq.Entry) *int { return &e.Attempts }).mutable(),
	plain("status", func(e *dlq.Entry) *dlq.Status { return &e.Status }).mutable().derive(),
	integer("version", "bigint", func(e *dlq.Entry) *int64 { return &e.Version }).counter().derive(),
	integer("retry_count", "integer", func(e *dlq.Entry) *int { return &e.RedriveCount }).counter().derive(),
	integer("max_retries", "integer", func(e *dlq.Entry) *int { return &e.RedriveBudget }),
	integer("death_redrive", "integer", func(e *dlq.Entry) *int { return &e.DeathRedrive }).mutable().derive(),
	integer("seen_count", "integer", func(e *dlq.Entry) *int { return &e.SeenCount }).counter().derive(),
	timeOf("lease_until", func(e *dlq.Entry) *time.Time { return &e.LeaseUntil }).mutable().derive(),
	textOrNull("run_id", func(e *dlq.Entry) *string { return &e.Run }).mutable().derive(),
	timeOf("created_at", func(e *dlq.Entry) *time.Time { return &e.CreatedAt }),
	timeOf("first_failure_at", func(e *dlq.Entry) *time.Time { return &e.FirstFailureAt }),
	timeOf("died_at", func(e *dlq.Entry) *time.Time { return &e.DiedAt }).mutable().derive(),
	timeOf("last_seen_at", func(e *dlq.Entry) *time.Time { return &e.LastSeenAt }).mutable().derive(),
	timeOf("last_retry_at", func(e *dlq.Entry) *time.Time { return &e.LastRedriveAt }).mutable().derive(),
	timeOf("succeeded_at", func(e *dlq.Entry) *time.Time { return &e.SucceededAt }).mutable().derive(),
	timeOf("resolved_at", func(e *dlq.Entry) *time.Time { return &e.ResolvedAt }).mutable().derive(),
	textOrNull("resolved_by", func(e *dlq.Entry) *string { return &e.ResolvedBy }).mutable().derive(),
	timeOf("changed_at", func(e *dlq.Entry) *time.Time { return &e.ChangedAt }).mutable().derive(),
	plain("changed_by", func(e *dlq.Entry) *string { return &e.ChangedBy }).mutable(),
	integer("revision", "integer", func(e *dlq.Entry) *int { return &e.Revision }).mutable().derive(),
	textOrNull("redrive_to", func(e *dlq.Entry) *string { return &e.Origin.RedriveTo }),
	integer("payload_size", "bigint", func(e *dlq.Entry) *int64 { return &e.Size }).mutable().derive(),
}

func (c column) mutable() column { c.state = true; return c }

func (c column) counter() column { c.state, c.counted = true, true; return c }

func (c column) derive() column { c.derived = true; return c }

func (c column) archivedAs(name string) column { c.archive = name; return c }

// plain is a text column that is never NULL.
func plain[T ~string](name string, of func(e *dlq.Entry) *T) column {
	return column{
		name: name, kind: "text", value: func(_ dialect, e *dlq.Entry) any { return string(*of(e)) },
		dest: func(e *dlq.Entry) any { return of(e) },
		same: func(a, b *dlq.Entry) bool { return *of(a) == *of(b) },
	}
}

// textOrNull is a column in which empty text is NULL.
func textOrNull(name string, of func(e *dlq.Entry) *string) column {
	return column{
		name: name, kind: "text", value: func(_ dialect, e *dlq.Entry) any { return null(*of(e)) },
		dest: func(e *dlq.Entry) any { return textValue{of(e)} },
		same: func(a, b *dlq.Entry) bool { return *of(a) == *of(b) },
	}
}

// bytesOrNull is a column of bytes in which empty is NULL.
func bytesOrNull[T ~string | ~[]byte](name string, of func(e *dlq.Entry) *T) column {
	return column{
		name: name, kind: "bytea", value: func(_ dialect, e *dlq.Entry) any { return null([]byte(*of(e))) },
		dest: func(e *dlq.Entry) any { return bytesValue[T]{of(e)} },
		same: func(a, b *dlq.Entry) bool { return bytes.Equal([]byte(*of(a)), []byte(*of(b))) },
	}
}

// integer is a column of integers that is never NULL.
func integer[T int | int64](name, kind string, of func(e *dlq.Entry) *T) column {
	return column{
		name: name, kind: kind, value: func(_ dialect, e *dlq.Entry) any { return *of(e) },
		dest: func(e *dlq.Entry) any { return of(e) },
		same: func(a, b *dlq.Entry) bool { return *of(a) == *of(b) },
	}
}

func integerOrNull[T int32 | int64](name, kind string, of func(e *dlq.Entry) **T) column {
	return column{
		name: name, kind: kind, value: func(_ dialect, e *dlq.Entry) any { return nullable(*of(e)) },
		dest: func(e *dlq.Entry) any { return of(e) },
		same: func(a, b *dlq.Entry) bool { return nullable(*of(a)) == nullable(*of(b)) },
	}
}

// timeOf is a column in which the zero time is NULL.
func timeOf(name string, of func(e *dlq.Entry) *time.Time) column {
	return column{
		name: name, kind: "timestamptz", value: func(d dialect, e *dlq.Entry) any { return d.time(*of(e)) },
		dest: func(e *dlq.Entry) any { return timeValue{of(e)} },
		same: func(a, b *dlq.Entry) bool { return of(a).Equal(*of(b)) },
	}
}

// Derived from the table.
var (
	entryColumns = sqldb.Map(columns, func(c *column) string { return c.name })
	selectEntry  = "id, " + strings.Join(entryColumns, ", ")
	stateColumns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return !c.state })
	// archivedColumns are entryColumns with their names in the archive.
	archivedColumns = sqldb.Map(columns, func(c *column) string { return cmp.Or(c.archive, c.name) })
)

func entryValues(d dialect, e *dlq.Entry) []any {
	return sqldb.Map(columns, func(c *column) any { return c.value(d, e) })
}

// scanEntry reads a row of selectEntry. The cause is not in it: it is computed from the error.
func scanEntry(row sqldb.Row, e *dlq.Entry) error {
	dest := make([]any, 1, len(columns)+1)
	dest[0] = &e.ID
	for i := range columns {
		dest = append(dest, columns[i].dest(e))
	}
	err := row.Scan(dest...)
	e.Cause = dlq.Normalize(e.ErrorMessage)
	return err
}

// scanEntries reads and closes the result of a query.
func scanEntries(rows *sql.Rows, err error) ([]dlq.Entry, error) {
	return sqldb.All[dlq.Entry](rows, err)(scanEntry)
}

// keyValue reads a key.
type keyValue struct{ to *driver.Key }

// Scan reads bytes.
func (v keyValue) Scan(src any) error {
	key, ok := src.([]byte)
	if !ok {
		return fmt.Errorf("sqlstore: a key cannot be read from %T", src)
	}
	copy(v.to[:], key)
	return nil
}

// bytesValue reads bytes into a text or a slice; NULL becomes nil.
type bytesValue[T ~string | ~[]byte] struct{ to *T }

// Scan reads bytes or NULL.
func (v bytesValue[T]) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		var none T
		*v.to = none
	case []byte:
		*v.to = T(bytes.Clone(src))
	case string:
		*v.to = T(src)
	default:
		return fmt.Errorf("sqlstore: bytes cannot be read from %T", src)
	}
	return nil
}

func nullable[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// questionMarks is the VALUES list of rows with n columns.
func questionMarks(n, rows int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?, ", n), ", ") + ")"
	return strings.TrimSuffix(strings.Repeat(row+", ", rows), ", ")
}

// null turns an empty value into NULL.
func null[T ~string | ~[]byte](value T) any {
	if len(value) == 0 {
		return nil
	}
	return value
}

// timeValue reads a time column of any dialect; NULL is the zero time.
type timeValue struct{ to *time.Time }

// Scan reads a time, or its text, from the driver.
func (v timeValue) Scan(src any) error {
	switch src := src.(type) {
	case nil:
		*v.to = time.Time{}
	case time.Time:
		*v.to = src.UTC()
	case string:
		return v.parse(src)
	case []byte:
		return v.parse(string(src))
	default:
		return fmt.Errorf("sqlstore: a time cannot be read from %T", src)
	}
	return nil
}

func (v timeValue) parse(text string) error {
	// The others are written by hand, without the fraction or with a zone.
	var t time.Time
	var err error
	for _, layout := range []string{
		timeText, "2006-01-02 15:04:05", time.RFC3339Nano, "2006-01-02 15:04:05.999999999-07:00",
	} {
		if t, err = time.Parse(layout, text); err == nil {
			*v.to = t.UTC()
			return nil
		}
	}
	return fmt.Errorf("sqlstore: not a time: %w", err)
}

// textValue reads a text column; NULL is empty text.
type textValue struct{ to *string }

// Scan reads a text or NULL.
func (v textValue) Scan(src any) error {
	var text sql.NullString
	if err := text.Scan(src); err != nil {
		return err
	}
	*v.to = text.String
	return nil
}
