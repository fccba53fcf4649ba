package dashboard_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// The run of a whole cause is reviewed, started with a canary and a rate, and watched to its end without a reload.
func TestRun_WatchedToItsEnd(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 40, cause("bank: connection refused"))
	s.put(t, 1, cause("something else"))
	bad, last := s.entry(t, ids[7]).Body.UUID, s.entry(t, ids[20]).Body.UUID
	seen := make(chan struct{}) // the run does not end before the browser has shown its progress
	s.breaks(func(m *message.Message) error {
		switch m.UUID {
		case bad:
			return errStillBroken
		case last:
			<-seen
		}
		return nil
	})
	release := sync.OnceFunc(func() { close(seen) })
	t.Cleanup(release)
	b := s.open(t, "ana:operator")
	b.visit("/groups?q=bank")
	b.follow(`tbody tr a`)
	b.follow(`a[href*="/runs/new"]`)
	require.Contains(t, b.text(), "40 entries")
	require.Contains(t, b.text(), "Nothing is sent until you press Send")
	require.Empty(t, s.handled())
	b.fill(`input[name=canary]`, "1, 5")
	b.fill(`input[name=rate]`, "20")
	b.fill(`input[name=stop]`, "50")
	b.follow(`button[value=preview]`)
	b.fill(`input[name=note]`, "the bank is open again")
	b.follow(`button[value=start]`)
	b.has("the bank is open again")
	loaded := eval[float64](b, `performance.timeOrigin`)

	// The progress bar grows without a reload.
	var steps []string
	b.wait(`document.querySelector(".run-progress .big").innerText !== "0 %"`)
	for {
		steps = append(steps, eval[string](b, `document.querySelector(".run-progress .big").innerText`))
		if steps[len(steps)-1] == "100 %" {
			break
		}
		release()
		b.wait(fmt.Sprintf(`document.querySelector(".run-progress .big").innerText !== %q`, steps[len(steps)-1]))
	}
	require.Greater(t, len(steps), 1, "its progress was visible: %v", steps)
	b.wait(`document.querySelector("h1 .status").innerText === "completed"`)
	require.InDelta(t, loaded, eval[float64](b, `performance.timeOrigin`), 0, "no reload")
	require.Contains(t, eval[string](b, `document.querySelector(".stretch-legend").innerText`), "39 succeeded")
	require.Contains(t, b.text(), errStillBroken.Error())
	require.Contains(t, eval[string](b, `document.querySelector("main tbody a.id").innerText`), driver.FormatID(ids[7]))

	require.Len(t, s.handled(), 40)
	for i, id := range ids {
		want := dlq.Resolved
		if i == 7 {
			want = dlq.Pending
		}
		require.Equal(t, want, s.entry(t, id).Status)
	}
	runs, _, err := s.runner.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, runs, 1)
	require.Equal(t, []int{1, 5}, runs[0].Spec.Canary)
	require.InDelta(t, 20, runs[0].Spec.Rate, 0)
	require.Equal(t, "ana", runs[0].CreatedBy)
}

// A run can be paused, slowed down, resumed and cancelled on its page.
func TestRun_PauseResumeCancel(t *testing.T) {
	s := newSite(t)
	s.put(t, 50)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Rate: 0.02}, dlq.By{Actor: "bob"}) // it does not end
	require.NoError(t, err)
	b := s.open(t, "ana:operator")
	state := func() *redrive.Run {
		r, err := s.runner.Run(t.Context(), run.ID)
		require.NoError(t, err)
		return r
	}
	b.visit("/runs/" + run.ID)
	b.follow(`button[value=pause]`)
	b.has("The run is paused.")
	require.Equal(t, redrive.Paused, state().State)
	require.Equal(t, "ana", state().ChangedBy)
	b.fill(`input[name=rate]`, "0.03")
	b.follow(`button[value=adjust]`)
	require.InDelta(t, 0.03, state().Spec.Rate, 0)
	b.follow(`button[value=resume]`)
	require.Equal(t, redrive.Running, state().State)
	b.follow(`button[value=cancel]`)
	b.has("The run is cancelled.")
	require.Equal(t, redrive.Cancelled, state().State)
	b.visit("/runs?state=cancelled")
	require.Equal(t, 1, eval[int](b, `document.querySelectorAll("tbody tr").length`))
	b.visit("/audit?run=" + run.ID)
	require.Contains(t, b.text(), "run pause")
}

// A run that edits needs a second person: neither its author nor an operator can approve it, but an approver can. The
// sent messages are those of the preview.
func TestRun_Approval(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 3)
	ana := s.open(t, "ana:approver")
	ana.visit("/runs/new")
	ana.click(`.run-form details summary`)
	ana.fill(`textarea[name=jq]`, `.currency = "EUR"`)
	// no button is needed: the count is updated while the user types
	ana.wait(`document.querySelector(".samples .diff").innerText.includes("EUR")`)
	diff := eval[string](ana, `document.querySelector(".samples .diff").innerText`)
	require.Contains(t, diff, `"currency": "EUR"`)
	require.Contains(t, ana.text(), "Someone else has to approve")
	ana.follow(`button[value=start]`)
	ana.has("awaiting approval")
	require.Equal(t, 0, eval[int](ana, `document.querySelectorAll("button[value=approve]").length`))
	path := eval[string](ana, `location.pathname`)[len("/ops"):]

	eve := s.open(t, "eve:operator")
	eve.visit(path)
	require.Equal(t, 0, eval[int](eve, `document.querySelectorAll("button[value=approve]").length`))
	require.Empty(t, s.handled())

	bob := s.open(t, "bob:approver")
	bob.visit(path)
	bob.follow(`button[value=approve]`)
	for _, id := range ids {
		s.becomes(t, id, dlq.Resolved)
	}
	bob.wait(`document.querySelector("h1 .status").innerText === "completed"`)
	require.Contains(t, bob.text(), "approved by bob")
	for _, payload := range s.handled() {
		require.Contains(t, payload, `"currency":"EUR"`)
	}
}

// A run stops on its own if too many messages die again, and its page explains why.
func TestRun_Stops(t *testing.T) {
	s := newSite(t)
	s.put(t, 30)
	s.breaks(func(*message.Message) error { return errStillBroken })
	b := s.open(t, "ana:operator")
	b.visit("/runs/new?canary=5")
	b.follow(`button[value=start]`)
	b.wait(`document.querySelector("h1 .status").innerText === "stopped"`)
	require.Contains(t, b.text(), "5 failed again")
	require.Len(t, s.handled(), 5, "only the canary")
	b.visit("/")
	require.Contains(t, b.text(), "stopped")
}

// The ticked entries of the list become the set of a run.
func TestRun_OfTickedEntries(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 5)
	b := s.open(t, "ana:operator")
	b.visit("/entries")
	for _, id := range ids[:2] {
		b.click(fmt.Sprintf(`input[name=pick][value="%d"]`, id))
	}
	b.follow(`button[value=redrive]`)
	require.Contains(t, b.text(), "2 entries")
	b.follow(`button[value=start]`)
	for _, id := range ids[:2] {
		s.becomes(t, id, dlq.Resolved)
	}
	require.Equal(t, dlq.Pending, s.entry(t, ids[2]).Status)
}

// A late count for an earlier input does not disable the button for the current input.
func TestNewRun_ALateCountDoesNotDisableTheButton(t *testing.T) {
	s := newSite(t)
	s.put(t, 3, cause("bank: connection refused"))
	b := s.open(t, "ana:operator")
	b.visit("/runs/new?q=bank")
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	late := func(r *http.Request) bool {
		if r.URL.Query().Get("jq") == "(" {
			asked <- struct{}{}
			select {
			case <-answer:
			case <-r.Context().Done():
			}
		}
		return false
	}
	s.first.Store(&late)
	b.click(`.run-form details summary`)
	b.do(chromedp.SendKeys(chromedp.CSS(`textarea[name=jq]`), "("))
	<-asked
	// Prevent the next count, which starts 250 ms after the last key.
	eval[bool](b, `((later) => { window.setTimeout = (f, ms) => ms === 250 ? 0 : later(f, ms); return true })(setTimeout)`)
	b.do(chromedp.SendKeys(chromedp.CSS(`textarea[name=jq]`), ".)"))
	close(answer)
	b.wait(`performance.getEntriesByType("resource").some((e) => /jq=%28(&|$)/.test(e.name))`)
	eval[bool](b, `(setTimeout(() => { window.read = true }, 200), true)`) // it is read after that
	b.wait(`window.read`)
	require.False(t, eval[bool](b, `document.querySelector("#send").disabled`))
}

// The run starts with every field of the form as it was changed after the preview, without a second preview. The button
// shows its numbers.
func TestNewRun_StartsWithExactlyTheInput(t *testing.T) {
	s := newSite(t, func(c *dlqhttp.Config) { c.Rate = 20 })
	s.put(t, 29, cause("bank: connection refused"))
	b := s.open(t, "ana:operator")
	label := `document.querySelector("#send").innerText`
	b.visit("/runs/new?q=bank&status=PENDING")
	require.Equal(t, "20", eval[string](b, `document.querySelector("input[name=rate]").value`), "the server's own rate")
	require.Equal(t, "Send 29 at 20/s, canary 1, 10, 100", eval[string](b, label))
	require.Equal(t, 1, eval[int](b, `document.querySelectorAll("main form").length`), "one form")
	b.fill(`input[name=run_limit]`, "7")
	b.wait(label + ` === "Send 7 at 20/s, canary 1, 10, 100"`)
	b.fill(`input[name=canary]`, "2")
	b.fill(`input[name=rate]`, "12.5")
	b.wait(label + ` === "Send 7 at 12.5/s, canary 2"`)
	b.fill(`input[name=rate]`, "x")
	b.has("a number from 0")
	require.True(t, eval[bool](b, `document.querySelector("#send").disabled`), "nothing to send")

	// The last fields are filled in and the button is pressed at once, before the entries are counted.
	b.fill(`input[name=note]`, "the bank is open")
	b.fill(`input[name=rate]`, "50")
	b.fill(`input[name=stop]`, "40")
	b.click(`.run-form details summary`)
	b.do(chromedp.SendKeys(chromedp.CSS(`textarea[name=jq]`), `.currency = "EUR"`))
	eval[bool](b, `(document.querySelector("select[name=target]").value = "quarantine", true)`)
	b.follow(`button[value=start]`)
	b.has("awaiting approval")
	runs, _, err := s.runner.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, runs, 1)
	spec := runs[0].Spec
	require.Equal(t, []any{int64(7), 50.0, []int{2}, 0.4, `.currency = "EUR"`, "quarantine", "bank"},
		[]any{spec.Limit, spec.Rate, spec.Canary, spec.Stop.Share, spec.JQ, spec.Target, spec.Filter.ErrorText})
	require.Equal(t, int64(7), runs[0].Counts.Total())
	require.Equal(t, "the bank is open", runs[0].Note)

	// An invalid form starts no run, and no input is lost.
	b.expect("422")
	b.visit("/runs/new?q=bank")
	b.fill(`input[name=note]`, "again")
	b.fill(`input[name=canary]`, "ten")
	b.follow(`button[value=start]`)
	require.Contains(t, b.text(), "such as 1, 10, 100")
	kept := eval[[]string](b, `["canary", "note"].map((n) => document.querySelector("input[name=" + n + "]").value)`)
	require.Equal(t, []string{"ten", "again"}, kept)

	// Enter in a field shows the preview and does not send.
	b.visit("/runs/new?q=bank")
	b.fill(`input[name=run_limit]`, "3")
	eval[bool](b, `window.left = true`)
	b.key(kb.Enter)
	b.wait(`!window.left && document.readyState === "complete"`)
	require.Equal(t, "Send 3 at 20/s, canary 1, 10, 100", eval[string](b, label))
	runs, _, err = s.runner.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, runs, 1)
}
