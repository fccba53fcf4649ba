package dashboard_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// The only button labelled Pause is that of the run: the button that pauses refreshes is an icon.
func TestRefresh_OnePause(t *testing.T) {
	s := newSite(t)
	s.put(t, 30)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Rate: 0.02}, dlq.By{Actor: "bob"}) // it does not end
	require.NoError(t, err)
	b := s.open(t, "ana:operator")
	b.visit("/runs/" + run.ID)
	named := `[...document.querySelectorAll("button, [role=button]")]
		.filter((e) => e.checkVisibility() && /pause/i.test(e.innerText + e.ariaLabel + e.title)).map((e) => e.value)`
	require.Equal(t, []string{"pause"}, eval[[]string](b, named))
	require.Empty(t, eval[string](b, `document.querySelector("[data-do=pause]").innerText`), "an icon")
	b.click(`[data-do=pause]`)
	b.wait(`document.querySelector("[data-updated]").innerText.startsWith("as of ")`)
	require.Equal(t, "grayscale(1)", eval[string](b, `getComputedStyle(document.querySelector("#live")).filter`),
		"stale data is grey")
	got, err := s.runner.Run(t.Context(), run.ID)
	require.NoError(t, err)
	require.NotEqual(t, redrive.Paused, got.State, "refreshing was paused, not the run")
	b.click(`[data-do=pause]`)
	b.wait(`getComputedStyle(document.querySelector("#live")).filter === "none"`)
}

// An unreachable server is reported in the middle of the page, over the greyed-out data with its time; once the server
// is reachable again, so is the page.
func TestRefresh_ServerAway(t *testing.T) {
	s := newSite(t)
	s.put(t, 30)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Paused: true}, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	b := s.open(t, "ana:operator")
	b.expect("net::ERR")
	b.expect("Failed to fetch")
	b.visit("/runs/" + run.ID) // refreshes every second
	require.False(t, eval[bool](b, `document.querySelector("#away").checkVisibility()`))
	s.away.Store(true)
	b.wait(`document.querySelector("#away").checkVisibility()`)
	told := eval[string](b, `document.querySelector("#away").innerText`)
	require.Contains(t, told, "The server does not answer")
	require.Regexp(t, `This page is as of \d\d:\d\d:\d\dZ`, told)
	off := eval[[]float64](b, `[document.querySelector("#away").getBoundingClientRect()]
		.flatMap((r) => [(r.left + r.right) / 2 - innerWidth / 2, (r.top + r.bottom) / 2 - innerHeight / 2])`)
	require.InDelta(t, 0, off[0], 5, "in the middle")
	require.InDelta(t, 0, off[1], 160, "in the middle")
	require.GreaterOrEqual(t, eval[float64](b,
		`parseFloat(getComputedStyle(document.querySelector("[data-away]")).fontSize)`), 16.0)
	require.Contains(t, eval[string](b, `getComputedStyle(document.querySelector("#live")).filter`), "grayscale")
	s.away.Store(false)
	b.wait(`!document.querySelector("#away").checkVisibility() && ` +
		`getComputedStyle(document.querySelector("#live")).filter === "none"`)
}

// An error page states whether the change was saved, whether the message was sent, and the broker's error, and has a
// link back.
func TestFaults_StateTheFacts(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 2)
	refusal := errors.New("amqp: 404 no queue 'orders.billing' in vhost '/'")
	s.refuses.Store(&refusal)
	b := s.open(t, "ana:operator")
	b.expect("503")
	b.visit(fmt.Sprintf("/entries/%d", ids[0]))
	b.follow(`button[value=redrive]`)
	text := b.text()
	require.Contains(t, text, "Not sent: the broker did not accept the message")
	require.Contains(t, text, refusal.Error())
	require.NotContains(t, text, "The store does not answer")
	require.Equal(t, dlq.Pending, s.entry(t, ids[0]).Status, "as stated on the page")
	b.follow(`main a[href$="/entries/` + driver.FormatID(ids[0]) + `"]`)
	require.Contains(t, b.text(), "Not published: returned")

	b.visit(fmt.Sprintf("/entries/%d/edit", ids[1]))
	b.fill(`textarea[name=payload]`, `{"fixed":true}`)
	b.follow(`button[value=redrive]`)
	text = b.text()
	require.Contains(t, text, "Saved, but not sent")
	require.Contains(t, text, "Revision 1 of entry")
	require.Contains(t, text, refusal.Error())
	require.NotContains(t, text, "The store does not answer")
	require.JSONEq(t, `{"fixed":true}`, string(s.entry(t, ids[1]).Body.Payload))
	s.refuses.Store(nil)
	b.follow(`main a[href$="/entries/` + driver.FormatID(ids[1]) + `"]`)
	b.follow(`button[value=redrive]`) // the link leads back to the page for another attempt
	s.becomes(t, ids[1], dlq.Resolved)
	require.Equal(t, []string{`{"fixed":true}`}, s.handled())
}

// While a form is filled in, a request that the server does not answer is reported where its result would be.
func TestForms_ServerAway(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	b := s.open(t, "ana:operator")
	for path, form := range map[string]struct{ field, value, where string }{
		"/runs/new":                         {`input[name=rate]`, "5", `#preview`},
		fmt.Sprintf("/entries/%d/edit", id): {`textarea[name=payload]`, "{}", `#diff`},
	} {
		b.visit(path)
		require.True(t, eval[bool](b, `(window.fetch = () => Promise.reject(new Error("no answer")), true)`))
		b.fill(form.field, form.value)
		b.wait(fmt.Sprintf(`document.querySelector(%q).innerText.includes("no answer")`, form.where))
	}
}

// While a form is filled in, the reason of a refusal before any page is where the result would be.
func TestForms_Refused(t *testing.T) {
	for path, form := range map[string]struct{ field, where string }{
		"/runs/new":       {`input[name=rate]`, `#preview`},
		"/entries/1/edit": {`textarea[name=payload]`, `#diff`},
	} {
		s := newSite(t, func(c *dlqhttp.Config) { c.Limits.Rate = 0.001 })
		s.put(t, 1)
		b := s.open(t, "ana:operator")
		b.expect("429")
		b.visit(path)
		eval[bool](b, `(Promise.all([...Array(300)].map(() => fetch(location))).then(() => { window.spent = true }), true)`)
		b.wait(`window.spent`) // every request of this client is refused from here on
		b.fill(form.field, "5")
		b.wait(fmt.Sprintf(`document.querySelector(%q).innerText.includes("try again in")`, form.where))
	}
}

// A refresh of the page asks as a person does: where there is a login, a refusal that is for programs would have the
// browser ask for a password over the page.
func TestRefresh_OfAPerson(t *testing.T) {
	accepts := make(chan string, 1)
	s := newSite(t, func(c *dlqhttp.Config) {
		c.Auth = []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(func(r *http.Request) (dlqhttp.Principal, error) {
			if r.Header.Get("Hx-Request") != "" {
				select {
				case accepts <- r.Header.Get("Accept"):
				default:
				}
			}
			return testUser(r)
		})}
	})
	b := s.open(t, "ana:operator")
	b.visit("/")
	eval[bool](b, `(htmx.trigger("#live", "redrive:refresh"), true)`)
	require.Contains(t, <-accepts, "application/xhtml+xml")
}
