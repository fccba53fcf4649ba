package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// tab is a tab of the browser, with its own cookies, that shows a site. It records what our pages must never cause:
// errors in the console, dialogs, and requests to other hosts.
type tab struct {
	t    testing.TB
	ctx  context.Context //nolint:containedctx // chromedp represents a tab by a context
	base string

	mu     sync.Mutex
	faults []string
	bytes  map[network.RequestID]float64
	// allow are the status codes whose errors in the console are expected.
	allow []string
}

// open opens a tab as a user in a role: "ana:admin".
func (s *site) open(t testing.TB, who string) *tab {
	t.Helper()
	ctx, closeTab := chromedp.NewContext(requireBrowser(t), chromedp.WithNewBrowserContext())
	t.Cleanup(closeTab)
	b := &tab{t: t, ctx: ctx, base: s.url, bytes: map[network.RequestID]float64{}}
	require.NoError(t, chromedp.Do(ctx)) // the first call's context is the tab's, so it must not end earlier
	b.do(chromedp.EmulateViewport(1280, 860))
	b.watch()
	if who != "" {
		_, err := chromedp.Call(b.ctx, network.SetExtraHTTPHeaders,
			network.SetExtraHTTPHeadersParams{Headers: network.Headers{"X-Test-User": who}})
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.Empty(t, b.complaints()) })
	return b
}

func (b *tab) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf(format, args...))
}

func (b *tab) complaints() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

func (b *tab) watch() {
	host := strings.TrimPrefix(b.base, "http://")
	host, _, _ = strings.Cut(host, "/")
	requests := chromedp.Events(b.ctx, network.RequestWillBeSent)
	finished := chromedp.Events(b.ctx, network.LoadingFinished)
	console := chromedp.Events(b.ctx, runtime.ConsoleAPICalled)
	thrown := chromedp.Events(b.ctx, runtime.ExceptionThrown)
	logged := chromedp.Events(b.ctx, log.EntryAdded)
	dialogs := chromedp.Events(b.ctx, page.JavascriptDialogOpening)
	go func() {
		for e, err := range requests {
			if err != nil {
				return
			}
			if u, err := url.Parse(e.Request.URL); err != nil || u.Host != host && u.Scheme != "data" && u.Scheme != "about" &&
				u.Scheme != "blob" {
				b.complain("request to %s", e.Request.URL)
			}
		}
	}()
	go func() {
		for e, err := range finished {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.bytes[e.RequestID] = e.EncodedDataLength
			b.mu.Unlock()
		}
	}()
	go func() {
		for e, err := range console {
			if err != nil {
				return
			}
			if e.Type == "error" || e.Type == "warning" || e.Type == "assert" {
				if text, _ := json.Marshal(e.Args); !b.expected(string(text)) {
					b.complain("console.%s: %s", e.Type, text)
				}
			}
		}
	}()
	go func() {
		for e, err := range thrown {
			if err != nil {
				return
			}
			text, _ := json.Marshal(e.ExceptionDetails)
			b.complain("exception: %s", text)
		}
	}()
	go func() {
		for e, err := range logged {
			if err != nil {
				return
			}
			if !b.expected(e.Entry.Text) && (e.Entry.Level == "error" || e.Entry.Level == "warning") {
				b.complain("log %s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
			}
		}
	}()
	go func() {
		for e, err := range dialogs {
			if err != nil {
				return
			}
			b.complain("dialog: %s", e.Message)
			_, _ = chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}
	}()
}

// expect allows an error with this status in the console.
func (b *tab) expect(status string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allow = append(b.allow, status)
}

// expected reports whether a console error was expected.
func (b *tab) expected(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, allowed := range b.allow {
		if strings.Contains(text, allowed) {
			return true
		}
	}
	return false
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	for _, action := range actions {
		act(b, action)
	}
}

// act gives each action a separate timeout, because a test may have any number of them.
func act[T any](b *tab, action chromedp.Action[T], msgAndArgs ...any) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err, msgAndArgs...)
	return value
}

// visit opens a page of the site.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + path))
	b.wait(`document.readyState === "complete" && document.querySelector("h1") !== null`)
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return act(b, chromedp.Evaluate[T](expression), expression)
}

// wait waits until an expression is true, over any number of page loads.
func (b *tab) wait(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	look := fmt.Sprintf(`new Promise((done) => { const look = () => { let is = false; try { is = Boolean(%s) } catch `+
		`{} is ? done(true) : setTimeout(look, 15) }; look() })`, expression)
	var last error
	for {
		// Chromium sometimes never answers for a promise of a page that is being left, so each answer has a separate timeout.
		answer, end := context.WithTimeout(ctx, patience/10)
		yes, err := chromedp.Run(answer, chromedp.Evaluate[bool](look,
			func(p *runtime.EvaluateParams) { p.AwaitPromise = new(true) }))
		end()
		switch {
		case err == nil && yes:
			return
		case ctx.Err() != nil:
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](
				`location.href + "\n" + document.body.innerText.slice(0, 1500)`))
			require.FailNow(b.t, "the condition was not met", "%s\nlast: %v\n%s", expression, errors.Join(last, err), text)
		default:
			last = err // the page was left, or its answer is late: look again
		}
	}
}

// click clicks on the element of a CSS selector, which must exist, and once more if the click did not reach it: what
// the page is still loading may have moved it away from under the pointer.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.querySelector(%q)", selector))
	for missed := true; missed; {
		eval[bool](b, fmt.Sprintf(`(window.missed = true, document.addEventListener("click", (e) => `+
			`{ if (e.target.closest(%q)) window.missed = false }, {capture: true}), true)`, selector))
		b.do(chromedp.ScrollIntoView(chromedp.CSS(selector)), chromedp.Click(chromedp.CSS(selector)))
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		// it fails if the page is being left
		again, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`Boolean(window.missed)`))
		cancel()
		missed = again && err == nil
	}
}

// follow clicks on a link or button that leads to another page, and waits for that page.
func (b *tab) follow(selector string) {
	b.t.Helper()
	eval[bool](b, `window.left = true`)
	b.click(selector)
	b.wait(`!window.left && document.readyState === "complete" && document.querySelector("h1") !== null`)
}

// fill sets a field like a user, with all events.
func (b *tab) fill(selector, text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.querySelector(%q)", selector))
	eval[bool](b, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); e.value = ""; return true })()`,
		selector))
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// key presses a key on the page.
func (b *tab) key(keys string) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// text returns the visible text of the page.
func (b *tab) text() string {
	b.t.Helper()
	return eval[string](b, `document.querySelector("main").innerText`)
}

// has waits until the page shows a text.
func (b *tab) has(text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf(`document.querySelector("main").innerText.includes(%q)`, text))
}

// media sets a preference of the browser.
func (b *tab) media(name, value string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: name, Value: value}},
	})
	require.NoError(b.t, err)
}

// transferred returns how many bytes the tab has received over the network.
func (b *tab) transferred() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := 0.0
	for _, n := range b.bytes {
		total += n
	}
	return int(total)
}
