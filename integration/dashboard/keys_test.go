package dashboard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// A user can get from the overview to a discarded entry without a mouse.
func TestKeys(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 5)
	b := s.open(t, "ana:operator")
	b.visit("/")
	b.key("?")
	b.wait(`document.querySelector("#help").open`)
	b.key(kb.Escape)
	b.wait(`!document.querySelector("#help").open`)
	// The key within 1.5 s after a g selects the page; the page's clock is stopped, because the machine may be slow.
	eval[bool](b, `((now) => { Date.now = () => now; return true })(Date.now())`)
	b.key("ge")
	b.wait(`location.pathname === "/ops/entries" && document.readyState === "complete"`)
	b.key("/")
	b.wait(`document.activeElement.name === "q"`)
	b.key(kb.Escape)
	b.key("j")
	b.key("j")
	b.key("x")
	b.wait(`document.querySelector("[data-picked]").innerText === "1 selected"`)
	require.Equal(t, driver.FormatID(ids[1]), eval[string](b, `document.querySelector("input[name=pick]:checked").value`))
	b.key("k")
	require.Equal(t, driver.FormatID(ids[0]), eval[string](b, `document.activeElement.innerText`))
	b.key(kb.Enter)
	b.wait(fmt.Sprintf(`location.pathname === "/ops/entries/%d" && document.readyState === "complete"`, ids[0]))
	for range 60 { // the buttons in the order of the page
		b.key(kb.Tab)
		if eval[string](b, `document.activeElement.value ?? ""`) == "discard" {
			break
		}
	}
	require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`),
		"the focus is visible")
	b.key(kb.Enter)
	b.has("discarded; it is kept")
	require.Equal(t, dlq.Discarded, s.entry(t, ids[0]).Status)

	b.visit("/")
	b.key(kb.Tab)
	require.Equal(t, "Skip to the content", eval[string](b, `document.activeElement.innerText`))
	b.key(kb.Enter)
	b.wait(`document.activeElement.id === "main"`)
}

// The row selected by keys, and its tick, stay with the entry when a refresh adds rows above it.
func TestKeys_SelectionSurvivesARefresh(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 3)
	b := s.open(t, "ana:operator")
	b.visit("/entries?status=any")
	b.key("j")
	b.key("j")
	newer := func(n int) {
		_, err := s.letters.Store().Put(t.Context(), letter(900+n, time.Now()))
		require.NoError(t, err)
		b.wait(fmt.Sprintf(`document.querySelectorAll("tbody tr").length === %d`, 3+n))
	}
	newer(1)
	b.key("x")
	b.wait(`document.querySelector("[data-picked]").innerText === "1 selected"`)
	ticked := `document.querySelector("input[name=pick]:checked").value`
	require.Equal(t, driver.FormatID(ids[1]), eval[string](b, ticked))
	// This lets a refresh be in flight when the box is ticked.
	eval[bool](b, `(setInterval(() => htmx.trigger("#live", "redrive:refresh"), 500), true)`)
	newer(2)
	require.Equal(t, driver.FormatID(ids[1]), eval[string](b, ticked))
	b.key("k")
	require.Equal(t, driver.FormatID(ids[0]), eval[string](b, `document.activeElement.innerText`))
}

// The server stores the theme, and the browser the time zone and the pause.
func TestTools(t *testing.T) {
	s := newSite(t)
	s.put(t, 3)
	b := s.open(t, "ana:viewer")
	b.visit("/entries")
	b.click(`[data-do=theme]`)
	b.wait(`document.documentElement.dataset.theme === "dark"`)
	b.visit("/entries")
	require.Equal(t, "dark", eval[string](b, `document.documentElement.dataset.theme`))
	require.Equal(t, "rgb(18, 21, 28)", eval[string](b, `getComputedStyle(document.body).backgroundColor`))

	b.visit("/entries/1") // the list shows relative times
	utc := eval[string](b, `document.querySelector("time").innerText`)
	require.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ$`, utc)
	b.click(`[data-do=zone]`)
	b.wait(`!document.querySelector("time").innerText.endsWith("Z")`)
	require.Equal(t, utc, eval[string](b, `document.querySelector("time").title`))
	offset := eval[int](b, `(new Date(document.querySelector("time").innerText) - new `+
		`Date(document.querySelector("time").dateTime)) / 1000 | 0`)
	require.Zero(t, offset, "the same moment in this machine's time zone")

	// While refreshes are paused nothing is requested; then the page is updated.
	b.click(`[data-do=pause]`)
	b.wait(`document.querySelector("[data-do=pause]").getAttribute("aria-pressed") === "true"`)
	b.visit("/entries?status=any")
	require.Regexp(t, `^as of \d\d:\d\d:\d\d$`, eval[string](b, `document.querySelector("[data-updated]").innerText`),
		"in local time")
	require.Equal(t, "grayscale(1)", eval[string](b, `getComputedStyle(document.querySelector("#live")).filter`))
	before := eval[string](b, `document.querySelector("#live").dataset.at`)
	_, err := s.manager.Resolve(t.Context(), 1, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	b.click(`[data-do=pause]`)
	b.wait(`document.querySelector("main").innerText.includes("resolved")`)
	require.NotEqual(t, before, eval[string](b, `document.querySelector("#live").dataset.at`))
	require.Contains(t, eval[string](b, `document.querySelector("time").title`), "Z", "refreshed times are local, too")
}

// A refresh does not discard unfinished input.
func TestRefresh_KeepsUnfinishedWork(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 3)
	b := s.open(t, "ana:operator")
	b.visit(fmt.Sprintf("/entries/%d", ids[0]))
	b.click(`details summary`)
	b.fill(`form.actions input[name=note]`, "half a sen")
	eval[bool](b, `(window.refreshed = 0, document.addEventListener("htmx:after:swap", () => window.refreshed++), true)`)
	eval[bool](b, `(htmx.trigger("#live", "redrive:refresh"), true)`) // bypassing the timer's check
	b.wait(`window.refreshed > 0`)
	require.Equal(t, "half a sen", eval[string](b, `document.querySelector("form.actions input[name=note]").value`),
		"the page is morphed, not replaced")
	require.True(t, eval[bool](b, `document.querySelector("details").open`))
	require.Equal(t, "note", eval[string](b, `document.activeElement.name`), "the focus is kept")
}
