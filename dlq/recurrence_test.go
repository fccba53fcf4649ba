package dlq_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// A weekly look at recurring causes, so that dead letters do not hide a defect.
func TestRecurrence(t *testing.T) {
	store := newStore(t)
	now := time.Date(2026, 3, 20, 10, 30, 0, 0, time.UTC)
	serial := 0
	die := func(cause string, n int, ago time.Duration) {
		for range n {
			serial++
			m := message.NewMessage(fmt.Sprintf("m-%d", serial), nil)
			m.Metadata[envelope.KeyMessageID] = m.UUID
			_, err := store.Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
				Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: cause}, Handler: "charge",
				Origin: envelope.Origin{Topic: "orders", Position: m.UUID}, Attempts: 4, At: now.Add(-ago),
			}))
			require.NoError(t, err)
		}
	}
	const dayLong = 24 * time.Hour
	die("new | *cause*", 3, 2*dayLong)
	die("grows", 4, 9*dayLong)
	die("grows", 12, dayLong)
	die("returns", 2, 20*dayLong)
	die("returns", 1, 3*dayLong)
	die("is fixed", 6, 10*dayLong)
	die("is steady", 5, 8*dayLong)
	die("is steady", 6, time.Minute)
	die("long ago", 9, 40*dayLong)

	manager := operate(t, store, nil)
	r, err := manager.Recurrence(t.Context(), dlq.RecurrenceQuery{Now: now})
	require.NoError(t, err)
	names := func(causes []dlq.RecurringCause) []string {
		list := []string{}
		for _, c := range causes {
			list = append(list, fmt.Sprintf("%s %d after %d", c.Cause, c.Now, c.Before))
		}
		return list
	}
	require.Equal(t, [][]string{
		{"new | *cause* 3 after 0"},
		{"grows 12 after 4"},
		{"returns 1 after 0"},
		{"is fixed 0 after 6"},
		{"is steady 6 after 5"},
	},
		[][]string{names(r.New), names(r.Growing), names(r.Returning), names(r.Fixed), names(r.Steady)})
	require.Equal(t, []int64{22, 15}, []int64{r.Now, r.Before})
	require.Equal(t, int64(3), r.New[0].Pending)

	page, _, _ := strings.Cut(r.Markdown(), "\n## Growing")
	require.Equal(t, `# Dead letters, 2026-03-13 11:00 to 2026-03-20 11:00

22 arrived, after 15 in the 7 days before.

## New

| cause | handler | now | before | pending | first seen | last seen | group |
|---|---|---:|---:|---:|---|---|---|
| new \| \*cause\* | charge | 3 | 0 | 3 | 2026-03-18 10:30 | 2026-03-18 10:30 | `+r.New[0].Fingerprint+` |
`, page)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"new":[{"fingerprint":"`+r.New[0].Fingerprint)

	day, err := manager.Recurrence(t.Context(), dlq.RecurrenceQuery{Now: now, Period: 24 * time.Hour})
	require.NoError(t, err)
	require.Equal(t, []string{"is steady 6 after 0"}, names(day.Returning))
	require.Equal(t, []string{"grows 0 after 12"}, names(day.Fixed))
	require.Contains(t, day.Markdown(), "No cause is new.\n\nNo cause is growing.\n")
	// Older ones may have been purged: what is left of them does not show that a cause returns or grows.
	query := dlq.RecurrenceQuery{Now: now, Retention: dlq.Retention{Resolved: 30 * dayLong, Discarded: 13 * dayLong}}
	kept, err := manager.Recurrence(t.Context(), query)
	require.NoError(t, err)
	require.Empty(t, append(kept.Returning, kept.Growing...))
	require.Equal(t, []string{"grows 12 after 4", "is steady 6 after 5", "returns 1 after 0"}, names(kept.Steady))
	query.Retention.Discarded = 6 * dayLong
	kept, err = manager.Recurrence(t.Context(), query)
	require.NoError(t, err)
	require.Empty(t, kept.Fixed, "what died since may have been purged")
	query.Retention.Discarded = 15 * dayLong
	kept, err = manager.Recurrence(t.Context(), query)
	require.NoError(t, err)
	require.Equal(t, r, kept)

	_, err = manager.Recurrence(t.Context(), dlq.RecurrenceQuery{Period: 90 * time.Minute})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}
