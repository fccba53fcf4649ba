package dlqhttp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/envelope"
)

// The report of the API is that of Go programs, limited to what the caller may see.
func TestReport(t *testing.T) {
	rules, err := redact.New(redact.Config{Texts: []string{`bank of \w+`}})
	require.NoError(t, err)
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin })
	n := 0
	die := func(cause string, times int, ago time.Duration) {
		for range times {
			n++
			m := message.NewMessage(fmt.Sprint("m-", n), nil)
			m.Metadata[envelope.KeyMessageID] = m.UUID
			_, err := s.letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
				Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: cause}, Handler: "charge",
				Origin: envelope.Origin{Topic: "orders", Position: m.UUID}, Attempts: 4, At: time.Now().Add(-ago),
			}))
			require.NoError(t, err)
		}
	}
	const day = 24 * time.Hour
	die("bank of Lisbon refuses", 3, 2*day)
	die("grows", 1, 9*day)
	die("grows", 9, 2*day)
	die("returns", 1, 20*day)
	die("returns", 2, 3*day)
	die("is fixed", 4, 10*day)
	die("is steady", 5, 8*day)
	die("is steady", 4, 2*day)

	for path, period := range map[string]time.Duration{"/api/v1/report": 7 * day, "/api/v1/report?hours=720": 30 * day} {
		var got dlq.Recurrence
		a := s.ask(t, http.MethodGet, path, "", as("admin")...)
		require.Equal(t, http.StatusOK, a.status, a.body)
		require.NoError(t, json.Unmarshal([]byte(a.body), &got))
		want, err := s.manager.Recurrence(t.Context(), dlq.RecurrenceQuery{Period: period, Now: got.To.Add(-time.Minute)})
		require.NoError(t, err)
		require.Equal(t, want, &got, path)
	}
	var week struct {
		New, Growing, Returning, Fixed, Steady []struct{ Cause string }
	}
	a := s.ask(t, http.MethodGet, "/api/v1/report", "", as("viewer")...)
	a.json(t, &week)
	require.Equal(t, redact.Mask+" refuses", week.New[0].Cause)
	require.NotContains(t, a.body, "Lisbon")
	require.Equal(t, []string{"grows", "returns", "is fixed", "is steady"},
		[]string{week.Growing[0].Cause, week.Returning[0].Cause, week.Fixed[0].Cause, week.Steady[0].Cause})

	// Two causes that look the same to a viewer are one before they are compared: neither new nor fixed.
	die("bank of Porto refuses", 2, 9*day)
	s.ask(t, http.MethodGet, "/api/v1/report", "", as("viewer")...).json(t, &week)
	require.Empty(t, week.New)
	require.Len(t, week.Fixed, 1)
	require.Equal(t, redact.Mask+" refuses", week.Steady[1].Cause)

	for _, hours := range []string{"0", "-1", "8785", "week"} {
		a := s.ask(t, http.MethodGet, "/api/v1/report?hours="+hours, "", as("viewer")...)
		require.Equal(t, http.StatusUnprocessableEntity, a.status, hours)
		require.Contains(t, a.body, "query.hours")
	}
}
