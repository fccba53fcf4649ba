package dashboard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Causes can be sorted by their columns, and the ticked ones are closed together, after a page that shows their number.
func TestCauses_SortAndTick(t *testing.T) {
	s := newSite(t)
	few := s.put(t, 2, cause("alpha: refused"))
	s.put(t, 5, cause("beta: refused"), messageIDs("b"))
	s.put(t, 3, cause("gamma: refused"), messageIDs("c"))
	b := s.open(t, "ana:operator")
	b.visit("/groups")
	first := `document.querySelector("tbody a.error").innerText`
	require.Equal(t, "beta: refused", eval[string](b, first), "the most entries")
	b.follow(`thead a[href*="sort=cause"]`)
	require.Equal(t, "alpha: refused", eval[string](b, first))
	require.Equal(t, "ascending", eval[string](b, `document.querySelector("th[aria-sort]").getAttribute("aria-sort")`))
	b.follow(`thead a[href*="sort=pending"]`)
	require.Equal(t, "beta: refused", eval[string](b, first))
	for _, text := range []string{"alpha", "gamma"} {
		b.click(`input[name=pick][aria-label*="` + text + `"]`)
	}
	b.wait(`document.querySelector("[data-picked]").innerText === "2 selected"`)
	b.follow(`button[value=discard]`)
	require.Contains(t, b.text(), "Discard 5 entries of 2 causes?")
	require.Equal(t, dlq.Pending, s.entry(t, few[0]).Status)
	b.fill(`input[name=note]`, "test orders")
	b.follow(`form[method=post] button`)
	b.has("5 entries of 2 causes discarded.")
	stats, err := s.manager.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, driver.Counts{Pending: 5, Discarded: 5}, stats.Counts)
	require.Equal(t, "test orders", s.last(t, few[0]).Note)
	b.expect("422")
	b.visit("/groups/act?do=discard")
	require.Contains(t, b.text(), "Nothing is selected")
}

// An entry takes one line on a desktop, however long its error is, and the filter suggests existing names.
func TestEntries_DenseWithSuggestions(t *testing.T) {
	s := newSite(t)
	s.put(t, 20, cause(strings.Repeat("bank: a very long error that never seems to end ", 20)))
	b := s.open(t, "ana:operator")
	b.visit("/entries?status=any")
	heights := eval[[]float64](b, `[...document.querySelectorAll("table.entries tbody tr")].map((r) => `+
		`r.getBoundingClientRect().height)`)
	require.Len(t, heights, 20)
	cut := eval[int](b, `[...document.querySelectorAll('td[data-label="Entry"]')].filter((c) => c.scrollWidth > `+
		`c.clientWidth).length`)
	require.Zero(t, cut, "id and status are not truncated")
	for _, h := range heights {
		require.Less(t, h, 34.0, "one line")
	}
	for field, want := range map[string]string{"handler": "charge", "class": "*bank.Error"} {
		suggested := eval[[]string](b, `[...document.querySelector("input[name=`+field+
			`]").list.options].map((o) => o.value)`)
		require.Equal(t, []string{want}, suggested)
	}
}

// An entry links to its neighbours in the list from which it was opened, and the list can be worked through with keys:
// redrive, edit, discard, next.
func TestEntry_NeighboursAndKeys(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 12) // the newest first
	l, err := s.manager.List(t.Context(), dlq.Filter{ErrorText: "bank"}, dlq.Page{})
	require.NoError(t, err)
	require.Greater(t, len(l.Entries), 3)
	require.Less(t, len(l.Entries), len(ids))
	b := s.open(t, "ana:operator")
	b.visit("/entries?status=PENDING&q=bank")
	b.follow(`tbody a.id`)
	at := func(n int) {
		b.wait(fmt.Sprintf(`location.pathname === "/ops/entries/%d" && document.readyState === "complete"`, l.Entries[n].ID))
	}
	at(0)
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("a[rel=prev]").length`), "it is the first entry")
	require.InDelta(t, 0, eval[float64](b, `(() => { const of = (s) => document.querySelector(s).getBoundingClientRect();
		const older = of("a[rel=next]"), copy = of(".head [data-copy=link]");
		return Math.abs(older.top - copy.top) + Math.abs(older.bottom - copy.bottom) })()`), 3, "buttons of a row are of "+
		"one height")
	b.key("n")
	at(1)
	b.key("n")
	at(2)
	b.key("p")
	at(1)
	b.key("d")
	b.has("discarded; it is kept")
	at(1) // with its script
	require.Equal(t, dlq.Discarded, s.entry(t, l.Entries[1].ID).Status)
	b.key("n") // the list is kept, although the entry is no longer in it
	at(2)
	b.key("r")
	s.becomes(t, l.Entries[2].ID, dlq.Resolved)
	b.has("sent back to its consumer")
	at(2)
	b.key("n")
	at(3)
	b.key("e")
	b.wait(fmt.Sprintf(`location.pathname === "/ops/entries/%d/edit" && document.readyState === "complete"`,
		l.Entries[3].ID))
	// While the user types, the difference is shown next to the payload, and nothing is saved.
	b.fill(`textarea[name=payload]`, `{"order":1,"fixed":true}`)
	b.wait(`document.querySelector("#diff").innerText.includes('"fixed": true')`)
	right := eval[float64](b, `document.querySelector("textarea[name=payload]").getBoundingClientRect().right`)
	require.Greater(t, eval[float64](b, `document.querySelector("#diff").getBoundingClientRect().left`), right,
		"next to it")
	require.Zero(t, s.entry(t, l.Entries[3].ID).Revision)

	b.visit("/system")
	b.key("/") // from every page
	b.wait(`location.pathname === "/ops/entries" && document.activeElement.name === "q"`)
}

// Runs are named after their filter on every page; identical rows of a run are folded into one row of the log.
func TestRuns_NamedAndFolded(t *testing.T) {
	s := newSite(t)
	ids := s.put(t, 8, cause("bank: connection refused"))
	by := dlq.By{Actor: "bob", Note: "it is open"}
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Filter: dlq.Filter{Topic: "orders", ErrorText: "bank"}}, by)
	require.NoError(t, err)
	for _, id := range ids {
		s.becomes(t, id, dlq.Resolved)
	}
	const name = "8 entries: error contains bank, topic orders"
	b := s.open(t, "ana:operator")
	b.visit("/runs")
	require.Equal(t, name, eval[string](b, `document.querySelector("tbody a").innerText`))
	b.visit("/runs/" + run.ID)
	require.Contains(t, eval[string](b, `document.querySelector("h1").innerText`), name)
	require.Contains(t, b.text(), "it is open")
	b.visit("/audit")
	rows := eval[[]string](b, `[...document.querySelectorAll("tbody tr")].map((r) => r.innerText)`)
	require.LessOrEqual(t, len(rows), 6, "%v", rows)
	require.Contains(t, strings.Join(rows, "\n"), "8 entries")
	require.Contains(t, strings.Join(rows, "\n"), name)
	b.click(`details.fold summary`)
	require.Equal(t, 8, eval[int](b, `document.querySelectorAll("details.fold[open] a").length`), "each of them is listed")

	whole := dlq.Filter{Fingerprint: s.entry(t, ids[0]).Fingerprint}
	cause, err := s.runner.StartRun(t.Context(), redrive.Spec{Filter: whole, Paused: true}, by)
	require.NoError(t, err)
	b.visit("/runs/" + cause.ID)
	require.Contains(t, eval[string](b, `document.querySelector("h1").innerText`), "bank: connection refused",
		"a cause is named by its text")
}

// The menu shows approvers how many runs of other users wait for approval; it does not show that to the authors or to
// users in other roles.
func TestApproval_Badge(t *testing.T) {
	s := newSite(t)
	s.put(t, 3)
	for _, who := range []string{"ana", "ana", "bob"} {
		_, err := s.runner.StartRun(t.Context(), redrive.Spec{JQ: `.currency = "EUR"`}, dlq.By{Actor: who})
		require.NoError(t, err)
	}
	badge := func(who string) string {
		b := s.open(t, who)
		b.visit("/")
		return eval[string](b, `document.querySelector(".badge")?.innerText ?? ""`)
	}
	require.Equal(t, "3", badge("eve:approver"))
	require.Equal(t, "2", badge("bob:approver"))
	require.Empty(t, badge("eve:operator"))
	b := s.open(t, "eve:approver")
	b.visit("/entries")
	b.follow(`.badge`)
	require.Equal(t, 3, eval[int](b, `document.querySelectorAll("tbody tr").length`))
}
