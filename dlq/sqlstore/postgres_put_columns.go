package sqlstore

// newColumn is a column of dlq_entries or dlq_bodies for which a new letter has a value.
type newColumn struct {
	parameter string
	// single is a letter's value, nil for NULL.
	single func(r *letterRow) any
	// array are the letters' values; nil if all are NULL, which costs neither side anything.
	array func(letters []letterRow) any
}

// required is a column that is never NULL.
func required[T any](name string, of func(r *letterRow) T) newColumn {
	return newColumn{
		parameter: name, single: func(r *letterRow) any { return of(r) },
		array: func(letters []letterRow) any {
			values := make([]T, len(letters))
			for i := range letters {
				values[i] = of(&letters[i])
			}
			return values
		},
	}
}

// optional is a column for which of returns nil for NULL.
func optional[T any](name string, of func(r *letterRow) *T) newColumn {
	return newColumn{
		parameter: name,
		single: func(r *letterRow) any {
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

// text is a column in which empty text is NULL.
func text(name string, of func(r *letterRow) *string) newColumn {
	return optional(name, func(r *letterRow) *string {
		if value := of(r); *value != "" {
			return value
		}
		return nil
	})
}

// binary is a column in which no bytes are NULL.
func binary(name string, of func(r *letterRow) []byte) newColumn {
	return optional(name, func(r *letterRow) *[]byte {
		if value := of(r); len(value) > 0 {
			return &value
		}
		return nil
	})
}

// newColumns are the parameters of dlq_put_letter and dlq_put_letters; the other columns have their defaults, are
// computed from these, or are NULL until something happens to the letter.
var newColumns = append(newEntryColumns(), []newColumn{
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
}...)

func newEntryColumns() []newColumn {
	var list []newColumn
	for i := range columns {
		if !columns[i].derived {
			list = append(list, columns[i].newColumn)
		}
	}
	return list
}
