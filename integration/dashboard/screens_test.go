package dashboard_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/integration/await"
)

// screens are all pages of a site with a run, by heading.
func screens(run string) map[string]string {
	return map[string]string{
		"/": "Overview", "/groups": "Causes", "/groups?status=any&q=bank": "Causes", "/entries": "Entries",
		"/entries?status=any&q=bank&topic=orders&since=7d&handler=charge": "Entries", "/entries/1": "Entry 1",
		"/entries/1/edit": "Edit entry 1",
		"/entries/act?do=park&scope=all&status=PENDING": "Park", "/runs": "Redrive runs", "/runs/new": "New redrive run",
		"/runs/new?jq=.currency%3D%22EUR%22": "New redrive run", "/runs/" + run: "", "/retention": "Retention",
		"/retention?days=0&resolved=1&discarded=1&archive=1": "Retention", "/audit": "Audit log", "/system": "System",
		"/nowhere": "There is no such page", "/entries?status=RESOLVED&q=nothing": "Entries",
		"/live": "Live", "/report": "Report", "/report?since=30d": "Report",
	}
}

// lived returns a site with data on every screen.
func lived(t testing.TB) (s *site, run *redrive.Run) {
	t.Helper()
	s = newSite(t)
	ids := s.put(t, 60)
	s.breaks(func(m *message.Message) error {
		if m.UUID[len(m.UUID)-1] == '7' {
			return errStillBroken
		}
		return nil
	})
	by := dlq.By{Actor: "ana", Note: "the bank is open again"}
	run, err := s.runner.StartRun(t.Context(),
		redrive.Spec{Filter: dlq.Filter{CauseText: "bank"}, Canary: []int{1, 10}, Stop: redrive.StopCondition{Share: 1}}, by)
	require.NoError(t, err)
	await.True(t, func() bool {
		run, err = s.runner.Run(t.Context(), run.ID)
		return err == nil && run.State.Ended()
	})
	for i, id := range ids {
		if s.entry(t, id).Status != dlq.Pending {
			continue
		}
		switch i % 9 {
		case 0:
			_, err = s.manager.Resolve(t.Context(), id, dlq.By{Actor: "bob", Note: "refunded by hand"})
		case 1:
			_, err = s.manager.Discard(t.Context(), id, dlq.By{Actor: "bob", Note: "test order"})
		case 2:
			_, err = s.manager.Park(t.Context(), id, dlq.By{Actor: "ana"})
		}
		require.NoError(t, err)
	}
	return s, run
}

// Every screen renders in a real browser on a desktop and, without scrolling sideways, on a phone, in light and in
// dark, and contacts no other host. Every test checks that the console remains empty.
func TestScreens(t *testing.T) {
	s, run := lived(t)
	b := s.open(t, "ana:admin")
	b.expect("404")
	for path, heading := range screens(run.ID) {
		for _, width := range []int64{1280, 820, 320} {
			b.do(chromedp.EmulateViewport(width, 800))
			b.visit(path)
			require.Contains(t, eval[string](b, `document.querySelector("h1").innerText`), heading, path)
			wide := eval[int64](b, `Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)`)
			require.LessOrEqual(t, wide, width, "%s is wider than a window of %d", path, width)
			bars := eval[[]string](b, `[...document.querySelectorAll("button:not(#send), [role=button]")]
				.filter((e) => e.getBoundingClientRect().width > 260).map((e) => e.innerText)`)
			require.Empty(t, bars, "%s: buttons that are as wide as the window", path)
			broken := eval[[]string](b, brokenWords)
			require.Empty(t, broken, "%s: words that are cut in the middle, in a window of %d", path, width)
			under := eval[[]string](b, underBoxes)
			require.Empty(t, under, "%s: labels with a line below their checkbox, in a window of %d", path, width)
		}
	}
	b.do(chromedp.EmulateViewport(1280, 860))
	for _, path := range []string{"/", "/entries", "/runs/" + run.ID} {
		ground := map[string]string{}
		for _, scheme := range []string{"light", "dark"} {
			b.media("prefers-color-scheme", scheme)
			b.visit(path)
			ground[scheme] = eval[string](b, `getComputedStyle(document.body).backgroundColor`)
		}
		require.Equal(t, map[string]string{"light": "rgb(245, 246, 249)", "dark": "rgb(18, 21, 28)"}, ground)
	}
}

// brokenWords lists the cells in which a single short word is broken over two lines.
const brokenWords = `[...document.querySelectorAll("th, td[data-label=Topic]")].flatMap((cell) => [...cell.childNodes].flatMap((n) => [n, ...n.childNodes]))
  .filter((n) => n.nodeType === 3 && /^\w{2,12}$/.test(n.data.trim()) && n.parentElement.checkVisibility())
  .filter((n) => { const head = n.parentElement.closest("thead"); return !head || getComputedStyle(head).position !== "absolute"; }) // on a phone it is for screen readers
  .filter((n) => { const r = document.createRange(); r.selectNodeContents(n); return new Set([...r.getClientRects()].map((c) => Math.round(c.top))).size > 1; })
  .map((n) => n.data.trim())`

// underBoxes lists the labels of checkboxes with a line that starts below the box, further left than the others.
const underBoxes = `[...document.querySelectorAll("label.check")].filter((label) => {
  for (let at = label.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  const box = label.querySelector("input").getBoundingClientRect(), words = document.createRange();
  words.selectNodeContents(label);
  return [...words.getClientRects()].some((line) => line.top >= box.bottom && line.left < box.right);
}).map((label) => label.innerText)`

// contrast lists the texts with too little contrast. Behind a transparent background, that of the parent counts.
const contrast = `(() => {
  const parse = (c) => { const n = c.match(/[\d.]+/g).map(Number); return c.startsWith("color(srgb") ? [n[0]*255, n[1]*255, n[2]*255, n[3] ?? 1] : [n[0], n[1], n[2], n[3] ?? 1]; };
  const light = ([r, g, b]) => { const f = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
  const poor = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const e = walk.currentNode.parentElement, text = walk.currentNode.data.trim();
    if (!text || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest("script, style, .sr, .skip, option, [disabled], svg, .chart")) continue;
    const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.add(text.slice(0, 30) + " " + ratio.toFixed(2) + " " + e.className);
  }
  return [...poor];
})()`

// With an empty cache, a browser fetches far less than 250 kB for all screens together.
func TestScreens_Weight(t *testing.T) {
	s, run := lived(t)
	b := s.open(t, "ana:admin")
	b.expect("404")
	b.visit("/")
	await.True(t, func() bool { return b.transferred() > 0 }) // the browser reports it later
	first := b.transferred()
	b.click(`[data-do=pause]`) // without refreshes
	require.Less(t, first, 100_000, "the first page")
	for path := range screens(run.ID) {
		b.visit(path)
	}
	t.Logf("first page %d bytes, all screens %d bytes", first, b.transferred())
	require.Less(t, b.transferred(), 250_000)
}

// The page of the API is readable under its content security policy, which allows its style, on a phone as well.
func TestScreens_API(t *testing.T) {
	b := newSite(t).open(t, "ana:viewer")
	b.do(chromedp.EmulateViewport(390, 800))
	b.visit("/api/v1/docs")
	require.Equal(t, "collapse", eval[string](b, `getComputedStyle(document.querySelector("table")).borderCollapse`))
	require.Greater(t, eval[int](b, `document.querySelectorAll("tbody tr").length`), 40)
	require.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), int64(390))
}

// A page of another site cannot press our buttons.
func TestScreens_OtherSites(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1)[0]
	b := s.open(t, "ana:admin")
	b.expect("403")
	b.visit("/")
	// A page from another site: data: has a separate origin.
	b.do(chromedp.Navigate(fmt.Sprintf(
		`data:text/html,<h1>evil</h1><form method="post" action="%s/entries/%d"><input name="do" value="discard"></form>`,
		s.url, id)))
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	answered := chromedp.Events(ctx, network.ResponseReceived)
	eval[bool](b, `(document.forms[0].submit(), true)`)
	for e, err := range answered {
		require.NoError(t, err)
		require.Equal(t, int64(403), e.Response.Status)
		break
	}
	require.Equal(t, dlq.Pending, s.entry(t, id).Status)
}
