package dashboard_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

// One screen shows what services are doing: messages in handlers, retries and when they are due, the broker's queue
// depths, and open circuits. It is updated without a reload.
func TestLive_ShowsCurrentWork(t *testing.T) {
	s := newSite(t)
	b := s.open(t, "ana:viewer")
	b.visit("/live")
	loaded := eval[float64](b, `performance.timeOrigin`)
	s.publish(t, "mails", "fail", "fail", "fail", "slow", "slow")
	row := `[...document.querySelectorAll("tr")].find((r) => r.innerText.startsWith("mails"))`
	cell := func(label string) string { return row + `.querySelector('[data-label="` + label + `"]').innerText` }
	b.wait(cell("Handled now") + `.startsWith("2")`)
	b.wait(cell("Waiting") + ` === "3"`)
	require.Regexp(t, `^next in (19|20) min\n3 within 1 h`, eval[string](b, cell("Due")))
	require.Contains(t, eval[string](b, cell("Queue")), "billing · mail")
	require.Equal(t, "0", eval[string](b, cell("Ready")), "counted by the broker")
	s.monitor.BreakerChanged(t.Context(), middleware.BreakerChanged{Key: "mail", From: "closed", To: "open"})
	b.has("Open circuits")
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("main form").length`), "a viewer cannot pause")
	close(s.release)
	b.wait(cell("Handled now") + ` === "0"`)
	require.InDelta(t, loaded, eval[float64](b, `performance.timeOrigin`), 0, "no reload")
}

// Intake can be paused and resumed on the screen: no message is received in between, and none is lost. Both are in the
// audit log.
func TestLive_PauseAndResume(t *testing.T) {
	s := newSite(t)
	b := s.open(t, "ana:operator")
	b.visit("/live")
	b.follow(`button[value=pause]`)
	b.has("The intake of billing is paused")
	intake := `document.querySelector('td[data-label="Intake"]').innerText`
	b.wait(intake + `.startsWith("paused") && !` + intake + `.includes("followed")`) // every process has paused
	s.publish(t, "mails", "a", "b", "c")
	mails := `[...document.querySelectorAll("tr")].find((r) => r.innerText.startsWith("mails"))`
	ready := mails + `.querySelector('[data-label="Ready"]').innerText`
	b.wait(ready + ` === "3"`)
	require.Zero(t, s.mailed())
	b.follow(`button[value=resume]`)
	b.wait(ready + ` === "0"`)
	await.Count(t, 3, s.mailed) // a message that is no longer ready may still be in flight
	require.Equal(t, 3, s.mailed())
	records, _, err := s.manager.AuditLog(t.Context(), dlq.AuditFilter{Actor: "ana"}, dlq.Page{})
	require.NoError(t, err)
	require.Equal(t, []driver.Action{driver.ActionResumeIntake, driver.ActionPauseIntake},
		[]driver.Action{records[0].Action, records[1].Action})
	b.visit("/audit?action=pause_intake")
	require.Contains(t, b.text(), "service: billing")
}
