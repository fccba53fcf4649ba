package dlqtest

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Processes report, an operator pauses their service, and each process learns that with its next report, as do
// processes that start later.
func testServices(w *world) {
	s, ok := driver.As[driver.ServiceStore](w.Store)
	if !ok {
		w.Skip("the store does not store reports of services")
	}
	report := func(service, process string, at time.Time) *driver.ServiceReport {
		return &driver.ServiceReport{
			Service: service, Process: process, At: at, CanPause: true,
			Queues: []driver.ServiceQueue{{
				Topic: "orders", Consumer: "billing", Handler: "charge", Handling: 3, Since: at.Add(-time.Second),
				Waiting: 2, Next: at.Add(time.Minute), Due: []driver.DueCount{{Within: time.Minute, Messages: 2}},
			}},
			Circuits: []driver.Circuit{{Key: "charge", State: "open", Since: at}},
		}
	}
	beat := func(r *driver.ServiceReport) driver.IntakePause {
		return must(s.Beat(w.Context(), r))(w)
	}
	for range 2 { // the same report again replaces it
		require.False(w, beat(report("shop", "a", noon)).Paused)
	}
	beat(report("shop", "b", noon.Add(-time.Hour)))
	beat(report("mail", "c", noon))
	found := must(s.Services(w.Context(), noon.Add(-time.Minute)))(w)
	require.Equal(w, []driver.Service{
		{Name: "mail", Processes: []driver.ServiceReport{*report("mail", "c", noon)}},
		{Name: "shop", Processes: []driver.ServiceReport{*report("shop", "a", noon)}},
	}, found)

	pause := driver.IntakePause{Service: "shop", Paused: true, By: "ana", At: noon}
	record := driver.AuditRecord{
		At: noon, Actor: "ana", Action: driver.ActionPauseIntake, Note: "bank is down",
		Detail: map[string]string{"service": "shop"},
	}
	for range 2 {
		require.NoError(w, s.PauseIntake(w.Context(), pause, record))
	}
	require.Equal(w, pause, beat(report("shop", "a", noon.Add(time.Second))))
	require.Equal(w, pause, beat(report("shop", "new", noon.Add(time.Second))))
	require.False(w, beat(report("mail", "c", noon.Add(time.Second))).Paused)
	found = must(s.Services(w.Context(), noon.Add(time.Hour)))(w)
	require.Equal(w, []driver.Service{{Name: "shop", Pause: pause}}, found, "a pause is shown although no process reports")
	records := w.recorded(dlq.AuditFilter{Action: driver.ActionPauseIntake}, dlq.Page{})
	require.Len(w, records, 2)
	require.Equal(w, []any{"ana", "bank is down", "shop"},
		[]any{records[0].Actor, records[0].Note, records[0].Detail["service"]})
	pause.Paused = false
	require.NoError(w, s.PauseIntake(w.Context(), pause, record))
	require.False(w, beat(report("shop", "a", noon.Add(2*time.Second))).Paused)

	// A starting process removes the reports of processes that ended a day before.
	beat(report("shop", "z", noon.Add(25*time.Hour)))
	found = must(s.Services(w.Context(), noon.Add(-24*time.Hour)))(w)
	require.Len(w, found[1].Processes, 1, "shop")
	for _, r := range []*driver.ServiceReport{
		report("", "a", noon), report("shop", "", noon), report(strings.Repeat("x", 256), "a", noon),
	} {
		_, err := s.Beat(w.Context(), r)
		require.ErrorIs(w, err, dlq.ErrInvalid)
	}
}
