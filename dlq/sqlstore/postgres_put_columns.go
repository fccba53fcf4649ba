package sqlstore

import "time"

// newColumn is a column of dlq_entries or dlq_bodies that a new letter has a value for.
type newColumn struct {
	name string
	// value is a letter's, nil for NULL.
	value func(r *letterRow) any
	// array are the letters' values; none when all are NULL, which costs neither side anything.
	array func(letters []letterRow) any
}

// required is a column that is never NULL.
func required[T any](name string, of func(r *letterRow) T) newColumn {
	return newColumn{
		name: name, value: func(r *letterRow) any { return of(r) },
		array: func(letters []letterRow) any {
			values := make([]T, len(letters))
			for i := range letters {
				values[i] = of(&letters[i])
			}
			return values
		},
	}
}

// optional is a column of which of returns nil for NULL.
func optional[T any](name string, of func(r *letterRow) *T) newColumn {
	return newColumn{
		name: name,
		value: func(r *letterRow) any {
			if value := of(r); value != nil {
				return *value
			}
			return nil
		},
		array: func(letters []letterRow) any {
			values, some := make([]*T, len(letters)), false
			for i := range letters {
				values[i] = of(&letters[i])
				some = some || values[i] != nil
			}
			if !some {
				return []T{}
			}
			return values
		},
	}
}

// text is a column of which empty text is NULL.
func text(name string, of func(r *letterRow) *string) newColumn {
	return optional(name, func(r *letterRow) *string {
		if value := of(r); *value != "" {
			return value
		}
		return nil
	})
}

// binary is a column of which no bytes are NULL.
func binary(name string, of func(r *letterRow) []byte) newColumn {
	return optional(name, func(r *letterRow) *[]byte {
		if value := of(r); len(value) > 0 {
			return &value
		}
		return nil
	})
}

// newColumns are the parameters of dlq_put_letter and dlq_put_letters; the other columns are as the tables make them, follow from these, or
// are NULL until something happens to the letter.
var newColumns = []newColumn{
	required("dedup_key", func(r *letterRow) []byte { return r.Key[:] }),
	required("event_id", func(r *letterRow) string { return r.EventID }),
	required("event_type", func(r *letterRow) string { return r.EventType }),
	text("source_table", func(r *letterRow) *string { return &r.SourceTable }),
	text("source_id", func(r *letterRow) *string { return &r.SourceID }),
	text("correlation_id", func(r *letterRow) *string { return &r.CorrelationID }),
	required("broker", func(r *letterRow) string { return r.Origin.Broker }),
	required("topic", func(r *letterRow) string { return r.Origin.Topic }),
	required("consumer", func(r *letterRow) string { return r.Origin.Consumer }),
	required("handler", func(r *letterRow) string { return r.Handler }),
	text("exchange", func(r *letterRow) *string { return &r.Origin.Exchange }),
	binary("routing_key", func(r *letterRow) []byte { return []byte(r.Origin.RoutingKey) }),
	binary("message_key", func(r *letterRow) []byte { return r.Origin.Key }),
	optional("kafka_partition", func(r *letterRow) *int32 { return r.Origin.Partition }),
	optional("kafka_offset", func(r *letterRow) *int64 { return r.Origin.Offset }),
	text("position", func(r *letterRow) *string { return &r.Origin.Position }),
	optional("broker_time", func(r *letterRow) *time.Time {
		if r.Origin.Timestamp.IsZero() {
			return nil
		}
		at := r.Origin.Timestamp.UTC()
		return &at
	}),
	required("reason", func(r *letterRow) string { return string(r.Reason) }),
	required("error_message", func(r *letterRow) string { return r.ErrorMessage }),
	text("error_code", func(r *letterRow) *string { return &r.ErrorCode }),
	text("error_class", func(r *letterRow) *string { return &r.ErrorClass }),
	text("rule", func(r *letterRow) *string { return &r.Rule }),
	required("fingerprint", func(r *letterRow) string { return r.Fingerprint }),
	required("attempts", func(r *letterRow) int { return r.Attempts }),
	required("max_retries", func(r *letterRow) int { return r.RedriveBudget }),
	required("created_at", func(r *letterRow) time.Time { return r.CreatedAt.UTC() }),
	required("first_failure_at", func(r *letterRow) time.Time { return r.FirstFailureAt.UTC() }),
	required("changed_by", func(r *letterRow) string { return r.ChangedBy }),
	required("message_uuid", func(r *letterRow) []byte { return []byte(r.Body.UUID) }),
	required("payload", func(r *letterRow) []byte { payload, _ := r.body[bodyPayload].([]byte); return payload }),
	optional("payload_json", func(r *letterRow) *string {
		if projection, ok := r.body[bodyProjection].(string); ok {
			return &projection
		}
		return nil
	}),
	required("payload_sha256", func(r *letterRow) []byte { return r.Body.SHA256[:] }),
	text("content_type", func(r *letterRow) *string { return &r.Body.ContentType }),
	required("headers", func(r *letterRow) string { headers, _ := r.body[bodyHeaders].(string); return headers }),
	text("stack_trace", func(r *letterRow) *string { return &r.Body.Trace }),
}
