package sqlstore

import (
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// stateColumn is a column that changes after the first death.
type stateColumn struct {
	name  string
	same  func(a, b *dlq.Entry) bool // without making values of either, which most columns of most changes can do without
	value func(d dialect, e *dlq.Entry) any
}

func state[T comparable](name string, of func(e *dlq.Entry) T) stateColumn {
	return stateColumn{
		name: name, same: func(a, b *dlq.Entry) bool { return of(a) == of(b) },
		value: func(_ dialect, e *dlq.Entry) any { return of(e) },
	}
}

// stateText is a column of which empty text is NULL.
func stateText(name string, of func(e *dlq.Entry) string) stateColumn {
	column := state(name, of)
	column.value = func(_ dialect, e *dlq.Entry) any { return null(of(e)) }
	return column
}

func stateTime(name string, of func(e *dlq.Entry) time.Time) stateColumn {
	return stateColumn{
		name: name, same: func(a, b *dlq.Entry) bool { return of(a).Equal(of(b)) },
		value: func(d dialect, e *dlq.Entry) any { return d.time(of(e)) },
	}
}

var stateColumns = []stateColumn{
	state("handler", func(e *dlq.Entry) string { return e.Handler }),
	state("reason", func(e *dlq.Entry) string { return string(e.Reason) }),
	state("error_message", func(e *dlq.Entry) string { return e.ErrorMessage }),
	stateText("error_code", func(e *dlq.Entry) string { return e.ErrorCode }),
	stateText("error_class", func(e *dlq.Entry) string { return e.ErrorClass }),
	stateText("rule", func(e *dlq.Entry) string { return e.Rule }),
	state("fingerprint", func(e *dlq.Entry) string { return e.Fingerprint }),
	state("attempts", func(e *dlq.Entry) int { return e.Attempts }),
	state("status", func(e *dlq.Entry) string { return string(e.Status) }),
	state("version", func(e *dlq.Entry) int64 { return e.Version }),
	state("retry_count", func(e *dlq.Entry) int { return e.RedriveCount }),
	state("death_redrive", func(e *dlq.Entry) int { return e.DeathRedrive }),
	state("seen_count", func(e *dlq.Entry) int { return e.SeenCount }),
	stateTime("lease_until", func(e *dlq.Entry) time.Time { return e.LeaseUntil }),
	stateText("run_id", func(e *dlq.Entry) string { return e.Run }),
	stateTime("died_at", func(e *dlq.Entry) time.Time { return e.DiedAt }),
	stateTime("last_seen_at", func(e *dlq.Entry) time.Time { return e.LastSeenAt }),
	stateTime("last_retry_at", func(e *dlq.Entry) time.Time { return e.LastRedriveAt }),
	stateTime("succeeded_at", func(e *dlq.Entry) time.Time { return e.SucceededAt }),
	stateTime("resolved_at", func(e *dlq.Entry) time.Time { return e.ResolvedAt }),
	stateText("resolved_by", func(e *dlq.Entry) string { return e.ResolvedBy }),
	stateTime("changed_at", func(e *dlq.Entry) time.Time { return e.ChangedAt }),
	state("changed_by", func(e *dlq.Entry) string { return e.ChangedBy }),
	state("revision", func(e *dlq.Entry) int { return e.Revision }),
	state("payload_size", func(e *dlq.Entry) int64 { return e.Size }),
}

// updateState writes all of them.
var updateState = func() string {
	names := make([]string, len(stateColumns))
	for i, column := range stateColumns {
		names[i] = column.name
	}
	return "UPDATE dlq_entries SET " + strings.Join(names, " = ?, ") + " = ? WHERE id = ?"
}()

// stateValues are the parameters of updateState.
func stateValues(d dialect, e *dlq.Entry) []any {
	values := make([]any, 0, len(stateColumns)+1)
	for i := range stateColumns {
		values = append(values, stateColumns[i].value(d, e))
	}
	return append(values, e.ID)
}
