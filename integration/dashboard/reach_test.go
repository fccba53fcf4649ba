package dashboard_test

import (
	"context"
	"net/http"
	"os"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/integration/await"
)

// axe-core finds no problem on any screen. In the dark only colors differ.
func TestScreens_Accessible(t *testing.T) {
	axe, err := os.ReadFile("testdata/axe.min.js")
	require.NoError(t, err)
	s, run := lived(t)
	b := s.open(t, "ana:admin")
	b.expect("404")
	paths := screens(run.ID)
	paths["/api/v1/docs"], paths["/groups/"+s.entry(t, 1).Fingerprint] = "", ""
	for scheme, rules := range map[string]string{"light": "{}", "dark": `{runOnly: ["color-contrast"]}`} {
		b.media("prefers-color-scheme", scheme)
		for path := range paths {
			b.visit(path)
			require.Empty(t, eval[[]string](b, contrast), "%s in %s", path, scheme)
			eval[bool](b, string(axe)+`; true`)
			eval[bool](b, `(window.found = null, axe.run(`+rules+`).then((r) => {
				window.found = r.violations.map((v) => v.id + ": " + v.nodes[0].html.slice(0, 160) + " " + v.nodes[0].failureSummary);
			}), true)`)
			b.wait(`window.found !== null`)
			require.Empty(t, eval[[]string](b, `window.found`), "%s in %s", path, scheme)
			if path == "/api/v1/docs" || scheme == "dark" {
				continue
			}
			// Fields, images and buttons have names, as a screen reader needs.
			nameless := eval[[]string](b, `[...document.querySelectorAll("main input:not([type=hidden]), main select, main textarea, button, a, [role=img], svg:not([aria-hidden])")]
				.filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.getAttribute("title") || e.labels?.length || e.innerText?.trim()))
				.map((e) => e.outerHTML.slice(0, 120))`)
			require.Empty(t, nameless, path)
			require.Equal(t, 1, eval[int](b, `document.querySelectorAll("h1").length`), path)
			require.Equal(t, "en", eval[string](b, `document.documentElement.lang`))
			twice := eval[[]string](b, `[...document.querySelectorAll("[id]")].map((e) => e.id).filter((id, i, all) => `+
				`all.indexOf(id) !== i)`)
			require.Empty(t, twice, path)
		}
	}
}

// A phone shows the number of pending entries and the top cause without scrolling.
func TestPhone_ShowsCountAndTopCause(t *testing.T) {
	s := newSite(t)
	s.put(t, 60)
	b := s.open(t, "ana:operator")
	b.do(chromedp.EmulateViewport(390, 780))
	b.visit("/")
	for _, selector := range []string{".card.lead .big", ".top-causes tbody a.error"} {
		bottom := eval[float64](b, `document.querySelector("`+selector+`").getBoundingClientRect().bottom`)
		require.Less(t, bottom, 780.0, selector)
	}
}

// The last hour, day and week are shown side by side; deaths after a redrive are counted, and the current hour is drawn
// separately.
func TestOverview_Curves(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 3)[0]
	s.breaks(func(*message.Message) error { return errStillBroken })
	_, err := s.manager.Redrive(t.Context(), id, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	await.True(t, func() bool { e := s.entry(t, id); return e.Status == dlq.Pending && e.RedriveCount == 1 },
		"it died again")
	b := s.open(t, "ana:viewer")
	b.do(chromedp.EmulateViewport(1440, 900))
	b.visit("/")
	b.wait(`[...document.querySelectorAll(".curves .chart")].every((c) => c.querySelector("canvas"))`)
	charts := eval[[]struct {
		X, In, Again []int64
		Top          float64
	}](b, `[...document.querySelectorAll(".curves .chart")].map((c) =>
		({ ...JSON.parse(c.dataset.chart), top: c.getBoundingClientRect().top }))`)
	require.Len(t, charts, 3)
	for i, want := range []struct{ points, step int64 }{{12, 300}, {24, 3600}, {168, 3600}} {
		c := charts[i]
		require.Equal(t, []int64{want.points, want.step}, []int64{int64(len(c.X)), c.X[1] - c.X[0]})
		require.InDelta(t, charts[0].Top, c.Top, 1, "side by side")
	}
	total := func(numbers []int64) (n int64) {
		for _, number := range numbers {
			n += number
		}
		return n
	}
	for _, c := range charts {
		require.Equal(t, int64(4), total(c.In), "three letters, one of which died twice")
		require.Equal(t, int64(1), total(c.Again))
	}
	require.Equal(t, 3, eval[int](b, `document.querySelectorAll(".curves .swatch.again").length`))
	b.visit("/groups/" + s.entry(t, id).Fingerprint)
	b.wait(`document.querySelector(".chart canvas")`)
	again := eval[[]int64](b, `JSON.parse(document.querySelector(".chart").dataset.chart).again`)
	require.Equal(t, int64(1), total(again), "the cause also has the chart")
	b.visit("/")
	require.Equal(t, 3, eval[int](b, `document.querySelectorAll(".curves .swatch.sofar, .curves .swatch.dash").length`))
}

// Without JavaScript a table replaces each chart, and a run can still be started.
func TestWithoutJavaScript(t *testing.T) {
	s := newSite(t)
	s.put(t, 9)
	b := s.open(t, "ana:operator")
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	b.do(chromedp.Navigate(b.base + "/"))
	html := act(b, chromedp.OuterHTML(chromedp.CSS("main")))
	require.Contains(t, html, "so far")
	require.Contains(t, html, `<th scope="col" class="num">Died</th>`)
}

// A search over payloads is not restarted by a refresh, shows that it is running, and can be stopped, which also stops
// the server.
func TestEntries_SlowSearch(t *testing.T) {
	slow := &slowStore{began: make(chan struct{}, 8)}
	s := newSiteOver(t, func(store dlq.Store) dlq.Store {
		slow.Store = store
		return slow
	})
	s.put(t, 3)
	b := s.open(t, "ana:viewer")
	b.visit("/entries?status=any&payload=order")
	<-slow.began
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll(".refresh").length`), "it does not refresh")
	require.Contains(t, b.text(), "does not refresh")
	slow.blocks.Store(true)
	b.fill(`input[name=payload]`, "orders")
	// The browser cannot be queried while a page is loading, so the page itself records what it shows, and presses Stop.
	// Before that it asks the server whether the search has begun, because one stopped earlier never reaches the server.
	searching := func(r *http.Request) bool {
		if r.URL.Path != "/searching" {
			return false
		}
		select {
		case <-slow.began:
		case <-r.Context().Done():
		}
		return true
	}
	s.first.Store(&searching)
	eval[bool](b, `(document.addEventListener("submit", () => fetch("/searching").then(() => setTimeout(() => {
		const said = document.querySelector("#searching");
		window.said = said.checkVisibility() && said.innerText;
		document.querySelector("[data-do=stop]").click();
	}, 1500))), document.querySelector(".filters button[type=submit]").click(), true)`)
	b.wait(`window.said && !document.querySelector("#searching").checkVisibility()`)
	require.Regexp(t, `Searching messages for \d+ s`, eval[string](b, `window.said`))
	require.Contains(t, eval[string](b, `location.search`), "payload=order", "the previous page is kept")
	await.True(t, slow.stopped.Load, "the server stopped the search")
}

// slowStore is a store whose List blocks on demand until it is cancelled.
type slowStore struct {
	driver.Store

	blocks, stopped atomic.Bool
	began           chan struct{}
}

func (s *slowStore) Unwrap() driver.Store { return s.Store }

func (s *slowStore) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	if f.PayloadText != "" {
		s.began <- struct{}{}
	}
	if s.blocks.Load() {
		<-ctx.Done()
		s.stopped.Store(true)
		return driver.Listing{}, ctx.Err()
	}
	return s.Store.List(ctx, f, p)
}
