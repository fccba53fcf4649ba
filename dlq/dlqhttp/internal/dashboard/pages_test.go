package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/callers"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// counted is a store that counts its calls.
type counted struct {
	*sqlstore.Store
	asked atomic.Int64
	down  atomic.Bool
	// broken answers only to Ping, and so does panics, which panics at anything else.
	broken, panics atomic.Bool
}

var errDown = errors.New("connection refused")

func (c *counted) ask() error {
	c.asked.Add(1)
	if c.panics.Load() {
		panic("boom")
	}
	if c.down.Load() || c.broken.Load() {
		return errDown
	}
	return nil
}

func (c *counted) Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error) {
	if err := c.ask(); err != nil {
		return driver.Stats{}, err
	}
	return c.Store.Stats(ctx, q)
}

func (c *counted) Groups(ctx context.Context, q dlq.GroupQuery) ([]driver.Group, error) {
	if err := c.ask(); err != nil {
		return nil, err
	}
	return c.Store.Groups(ctx, q)
}

func (c *counted) List(ctx context.Context, f dlq.Filter, p dlq.Page) (driver.Listing, error) {
	if err := c.ask(); err != nil {
		return driver.Listing{}, err
	}
	return c.Store.List(ctx, f, p)
}

func (c *counted) Count(ctx context.Context, f dlq.Filter, limit int64) (int64, error) {
	if err := c.ask(); err != nil {
		return 0, err
	}
	return c.Store.Count(ctx, f, limit)
}

func (c *counted) Runs(ctx context.Context, f redrive.RunFilter, p dlq.Page) ([]redrive.Run, string, error) {
	if err := c.ask(); err != nil {
		return nil, "", err
	}
	return c.Store.Runs(ctx, f, p)
}

func (c *counted) Audit(ctx context.Context, f dlq.AuditFilter, p dlq.Page) ([]driver.AuditRecord, string, error) {
	if err := c.ask(); err != nil {
		return nil, "", err
	}
	return c.Store.Audit(ctx, f, p)
}

func (c *counted) Ping(ctx context.Context) error {
	if c.asked.Add(1); c.down.Load() {
		return errDown
	}
	return c.Store.Ping(ctx)
}

// site is a dashboard over a SQLite file.
type site struct {
	handler http.Handler
	store   *counted
	manager *dlq.Manager
	runner  *redrive.Runner
}

const prefix = "/ops"

func newSite(t *testing.T, edits ...func(*operations.Config)) *site {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), "sqlite:"+storetest.File(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s := &site{store: &counted{Store: store}}
	sent := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	quiet := slog.New(slog.DiscardHandler)
	s.manager, err = dlq.NewManager(dlq.ManagerConfig{Store: s.store, Redriver: sent, Logger: quiet})
	require.NoError(t, err)
	s.runner, err = redrive.NewRunner(s.manager, redrive.Config{})
	require.NoError(t, err)
	cfg := s.config()
	for _, edit := range edits {
		edit(&cfg)
	}
	s.handler = New(cfg)
	return s
}

// config is the configuration of a dashboard that hides and records nothing.
func (s *site) config() operations.Config {
	return operations.Config{
		Manager: s.manager, Runner: s.runner, Prefix: prefix, Interval: time.Hour, Logger: slog.New(slog.DiscardHandler),
		Limits:  operations.Limits{Body: 4 << 20, Timeout: 30 * time.Second},
		Visible: func(context.Context) visible.View { return visible.View{} },
		Refused: func(context.Context, *visible.RefusedError) {}, Searches: callers.NewSlots("searches", 100, 100, 0, 0),
		Read: func(context.Context, string, ...int64) error { return nil },
		Health: func(ctx context.Context) (report wire.Health) {
			report.Add("store", s.manager.Ping(ctx), wire.Component{})
			return report
		},
	}
}

// put stores a dead letter.
func (s *site) put(t *testing.T, n int, edits ...func(*envelope.DeadLetter)) int64 {
	t.Helper()
	m := message.NewMessage(fmt.Sprint("uuid-", n), fmt.Appendf(nil, `{"order":%d,"card":"visa-%d"}`, n, n))
	m.Metadata = message.Metadata{envelope.KeyMessageID: fmt.Sprint("m-", n), "tenant": "acme"}
	d := &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted,
		Err: envelope.Error{Message: fmt.Sprintf("bank: timeout after %d ms", n)}, Class: "*bank.Error",
		Handler: "charge", Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}, Attempts: 4,
		At: time.Now().Add(-time.Duration(n) * time.Minute),
	}
	for _, edit := range edits {
		edit(d)
	}
	receipts, err := s.store.Put(t.Context(), dlq.NewEntry(d))
	require.NoError(t, err)
	return receipts[0].ID
}

// get requests a page in a role.
func (s *site) get(role access.Role, path string) *httptest.ResponseRecorder {
	return s.send(role, httptest.NewRequest(http.MethodGet, prefix+path, http.NoBody))
}

func (s *site) post(role access.Role, path string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, prefix+path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return s.send(role, r)
}

func (s *site) send(role access.Role, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	s.handler.ServeHTTP(w, r.WithContext(access.WithPrincipal(r.Context(), access.Principal{Name: "ana", Role: role})))
	return w
}

// screens are all pages for viewers.
func screens(run string) []string {
	return []string{
		"/", "/groups", "/report", "/report?since=24h", "/entries",
		"/entries?status=any&q=bank&payload=order&topic=orders&since=7d", "/entries/1", "/runs", "/runs/" + run,
		"/runs/" + run + "?items=failed", "/retention", "/retention?days=0&resolved=1", "/live", "/audit",
		"/audit?actor=ana&action=redrive", "/system",
	}
}

// forms are the pages that only operators see.
var forms = []string{
	"/entries/1/edit", "/entries/act?do=discard&scope=all", "/runs/new",
	"/runs/new?canary=&jq=.card%3D0",
}

// Fifty viewers of every page within an interval cost the store as much as one.
func TestPages_FiftyViewersCostAsMuchAsOne(t *testing.T) {
	s := newSite(t)
	for n := range 120 {
		s.put(t, n)
	}
	pages := []string{"/", "/groups", "/report", "/entries", "/entries?status=any&q=bank", "/runs", "/audit", "/system"}
	look := func() {
		for _, page := range pages {
			w := s.get(access.Viewer, page)
			require.Equal(t, http.StatusOK, w.Code, page)
		}
	}
	look()
	one := s.store.asked.Load()
	require.Positive(t, one)
	require.Less(t, one, int64(20))

	// All at once, after a change that emptied the cache.
	require.Equal(t, http.StatusSeeOther, s.post(access.Operator, "/entries/1", url.Values{"do": {"resolve"}}).Code)
	s.store.asked.Store(0)
	var viewers sync.WaitGroup
	for range 50 {
		viewers.Go(look)
	}
	viewers.Wait()
	require.Equal(t, one, s.store.asked.Load())
}

// A change of many entries that panics in the background is a page with an error, and the process lives.
func TestJobs_Panic(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	s.store.panics.Store(true)
	w := s.post(access.Admin, "/entries/act", url.Values{"do": {"resolve"}, "status": {"PENDING"}})
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Contains(t, w.Body.String(), "panic: boom")
}

// A second press of the button is the same run. A form that was changed after it had started a run, by way of the
// browser's Back, does not claim that it has started another.
func TestRuns_OfOneForm(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	frozen := time.Now().Truncate(time.Second).Add(time.Second) // as on the page; a later one would follow the clock
	form := url.Values{"run_id": {"r"}, "status": {"PENDING"}, "to": {frozen.UTC().Format(time.RFC3339)}, "rate": {"1"}}
	for range 2 {
		w := s.post(access.Operator, "/runs/new", form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		require.Equal(t, "/ops/runs/r", w.Header().Get("Location"))
	}
	form.Set("rate", "2")
	w := s.post(access.Operator, "/runs/new", form)
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "This form has started a run already")
	require.Contains(t, w.Body.String(), `href="/ops/runs/r"`)
}

// A run that was paused while it is prepared is shown as such, not as one that the person who paused it prepares.
func TestRuns_PausedWhilePreparing(t *testing.T) {
	s := newSite(t)
	spec, err := redrive.Spec{ID: "night"}.Resolve()
	require.NoError(t, err)
	now := time.Now()
	require.NoError(t, s.store.CreateRun(t.Context(), &redrive.Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: now, CreatedBy: "ana", ChangedAt: now,
		ChangedBy: "ana", ApprovalAbove: -1,
	}}, driver.AuditRecord{At: now, Actor: "ana", Action: redrive.ActionStart, Run: spec.ID}))
	page := s.get(access.Operator, "/runs/night").Body.String()
	require.Contains(t, page, `value="pause"`)
	require.NotContains(t, page, "then paused")
	w := s.post(access.Operator, "/runs/night", url.Values{"do": {"pause"}, "note": {"lunch"}})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	for _, path := range []string{"/runs/night", "/runs"} {
		require.Contains(t, s.get(access.Operator, path).Body.String(), "then paused", path)
	}
	page = s.get(access.Operator, "/runs/night").Body.String()
	require.Regexp(t, "<b>paused by [^<]+:</b> lunch", page)
	require.Contains(t, page, `value="resume"`)
	require.NotContains(t, page, `value="pause"`)
}

// A viewer sees no buttons, and the server refuses requests that a viewer forges.
func TestPages_Roles(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Paused: true}, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	for _, page := range screens(run.ID) {
		w := s.get(access.Viewer, page)
		require.Equal(t, http.StatusOK, w.Code, page)
		require.NotContains(t, w.Body.String(), `method="post"`, page)
		require.Equal(t, http.StatusForbidden, s.get(access.None, page).Code, page)
	}
	changes := []struct {
		path  string
		form  url.Values
		least access.Role
	}{
		{"/entries/1", url.Values{"do": {"discard"}}, access.Operator},
		{"/entries/1", url.Values{"do": {"release"}, "note": {"no reader"}}, access.Admin},
		{"/entries/1/edit", url.Values{"do": {"save"}, "payload": {"{}"}}, access.Operator},
		{"/entries/act", url.Values{"do": {"discard"}}, access.Operator},
		{"/runs/new", url.Values{"run_id": {"r"}}, access.Operator},
		{"/runs/" + run.ID, url.Values{"do": {"cancel"}}, access.Operator},
		{"/runs/" + run.ID, url.Values{"do": {"approve"}}, access.Approver},
		{"/live", url.Values{"do": {"pause"}, "service": {"billing"}}, access.Operator},
		{"/retention", url.Values{"days": {"0"}, "resolved": {"1"}, "sure": {"1"}}, access.Admin},
	}
	for _, change := range changes {
		w := s.post(change.least-1, change.path, change.form)
		require.Equal(t, http.StatusForbidden, w.Code, change.path)
		require.Contains(t, w.Body.String(), "needs the role "+change.least.String())
	}
	for _, form := range forms {
		require.Equal(t, http.StatusForbidden, s.get(access.Viewer, form).Code, form)
		require.Equal(t, http.StatusOK, s.get(access.Operator, form).Code, form)
	}
	e, err := s.manager.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, int64(1), e.Version, "nothing was changed")
}

// The read-only switch removes the buttons for every role.
func TestPages_ReadOnly(t *testing.T) {
	s := newSite(t, func(c *operations.Config) { c.ReadOnly = true })
	s.put(t, 1)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Paused: true}, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	for _, page := range append(screens(run.ID), forms...) {
		w := s.get(access.Admin, page)
		require.Equal(t, http.StatusOK, w.Code, page)
		require.Contains(t, w.Body.String(), "read-only", page)
		if page != "/entries/1/edit" && !strings.HasPrefix(page, "/entries/act") { // forms whose answer is a refusal
			require.NotContains(t, w.Body.String(), `method="post"`, page)
		}
	}
	w := s.post(access.Admin, "/entries/1", url.Values{"do": {"discard"}})
	require.Equal(t, http.StatusForbidden, w.Code)
	e, err := s.manager.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
}

// Every answer has a policy for the browser: only our files.
func TestPages_Headers(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	for _, page := range append(screens("x")[:4], "/nowhere", "/entries/99", "/entries/x") {
		header := s.get(access.Viewer, page).Header()
		require.Equal(t, policy, header.Get("Content-Security-Policy"), page)
		require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
		require.Equal(t, "DENY", header.Get("X-Frame-Options"))
		require.Equal(t, "no-store", header.Get("Cache-Control"))
		require.Equal(t, "text/html; charset=utf-8", header.Get("Content-Type"))
	}
	w := s.get(access.Viewer, "/entries/1/payload")
	require.JSONEq(t, `{"order":1,"card":"visa-1"}`, w.Body.String())
	require.Equal(t, "application/octet-stream", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Disposition"), "attachment")
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "sandbox")
}

// Files are compressed, and kept by browsers forever under the name of their content.
func TestPages_Static(t *testing.T) {
	s := newSite(t)
	page := s.get(access.Viewer, "/").Body.String()
	for _, name := range []string{
		"app.css", "app.js", "icon.svg", "vendor/htmx.min.js", "vendor/pico.min.css",
		"vendor/uplot.min.js", "vendor/uplot.min.css",
	} {
		link := prefix + "/static/" + name + "?v=" + assets()[name].version
		require.Contains(t, page, link)
		r := httptest.NewRequest(http.MethodGet, link, http.NoBody)
		r.Header.Set("Accept-Encoding", "gzip, br")
		w := s.send(access.Viewer, r)
		require.Equal(t, http.StatusOK, w.Code)
		require.Contains(t, w.Header().Get("Cache-Control"), "immutable")
		require.Equal(t, len(assets()[name].zipped), w.Body.Len())
		plain := s.get(access.Viewer, "/static/"+name)
		require.Equal(t, assets()[name].data, plain.Body.Bytes())
		require.Equal(t, "no-cache", plain.Header().Get("Cache-Control"))
	}
	require.Equal(t, http.StatusNotFound, s.get(access.Viewer, "/static/handler.go").Code)
	require.Equal(t, http.StatusNotFound, s.get(access.Viewer, "/static/vendor/").Code)
}

// Hidden text is nowhere on a page, and cannot be overwritten by its mask.
func TestPages_Redaction(t *testing.T) {
	rules, err := redact.New(redact.Config{
		Paths: []string{"$.card"}, Headers: []string{"tenant"},
		Texts: []string{`timeout after \d+`},
	})
	require.NoError(t, err)
	s := newSite(t, func(c *operations.Config) {
		c.Visible = func(context.Context) visible.View { return visible.New(rules, "admin", nil) }
	})
	s.put(t, 1)
	_, _, err = s.manager.Edit(t.Context(), 1, dlq.Edit{Payload: []byte(`{"order":2,"card":"visa-2"}`)},
		dlq.By{Actor: "bob"})
	require.NoError(t, err)
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Paused: true, JQ: `.card = "visa-3"`, Filter: dlq.Filter{
		ErrorText: "timeout after 1", CauseText: "timeout after 1", PayloadText: "visa-2",
		PayloadFields: []wire.PayloadField{{Path: []string{"card"}, Value: "visa-2"}},
	}}, dlq.By{Actor: "bob", Note: "timeout after 1"}) // bob sees payloads
	require.NoError(t, err)
	for _, page := range append(append(screens(run.ID), forms...), "/entries/1/payload", "/entries/1?revision=0",
		"/report.md", "/report.json") {
		body := s.get(access.Admin, page).Body.String()
		for _, secret := range []string{"visa-", "acme", "timeout after 1"} {
			require.NotContains(t, body, secret, page)
		}
	}
	for _, probe := range []string{
		"/entries?payload=visa-", "/entries/act?do=park&scope=all&payload=visa-", "/runs/new?jq=.order%3D.card",
		"/runs/new?payload=visa-",
		"/entries?field=card%3Dvisa-2", "/entries/act?do=park&scope=all&field=card%3Dvisa-2", "/runs/new?field=card%3Dvisa-2",
	} {
		w := s.get(access.Admin, probe)
		require.Equal(t, http.StatusForbidden, w.Code, probe)
		require.Contains(t, w.Body.String(), "hidden from you", probe)
	}
	for _, form := range []url.Values{{"jq": {".order=.card"}}, {"payload": {"visa-"}}, {"field": {"card=visa-2"}}} {
		form.Set("run_id", "probe")
		require.Equal(t, http.StatusForbidden, s.post(access.Admin, "/runs/new", form).Code)
	}
	require.Equal(t, http.StatusForbidden, s.post(access.Admin, "/entries/act",
		url.Values{"do": {"park"}, "payload": {"visa-"}}).Code)
	w := s.post(access.Admin, "/entries/1/edit",
		url.Values{"do": {"save"}, "payload": {`{"order":2,"card":"[redacted]"}`}})
	require.Equal(t, http.StatusOK, w.Code)
	require.Contains(t, w.Body.String(), "hidden from you")
	e, err := s.manager.Get(t.Context(), 1)
	require.NoError(t, err)
	require.JSONEq(t, `{"order":2,"card":"visa-2"}`, string(e.Body.Payload))
}

// A small message whose indented form would be huge is shown as it is.
func TestPages_NestedPayload(t *testing.T) {
	s := newSite(t)
	nested := strings.Repeat("[", 2_000) + strings.Repeat("1,", 2_000) + "1" + strings.Repeat("]", 2_000)
	id := s.put(t, 1, func(d *envelope.DeadLetter) { d.Message.Payload = []byte(nested) })
	page := s.get(access.Viewer, entryPath(id)).Body.String()
	require.Contains(t, page, nested)
	require.Less(t, len(page), 100_000)
}

// A store that is down, an entry that is gone, an invalid request: each page names the remedy.
func TestPages_Faults(t *testing.T) {
	s := newSite(t, func(c *operations.Config) { c.Interval = time.Nanosecond })
	s.put(t, 1)
	for path, want := range map[string]struct {
		status int
		says   string
	}{
		"/entries/99":             {http.StatusNotFound, "audit log"},
		"/entries/x":              {http.StatusNotFound, "the id of an entry is a number"},
		"/entries?status=NEW":     {http.StatusUnprocessableEntity, "one of PENDING"},
		"/entries?after=zzz":      {http.StatusUnprocessableEntity, "first page"},
		"/groups/nope":            {http.StatusNotFound, "purged"},
		"/report?since=90m":       {http.StatusUnprocessableEntity, "whole hours"},
		"/report?since=9000d":     {http.StatusUnprocessableEntity, "366d"},
		"/report.md?since=soon":   {http.StatusUnprocessableEntity, "such as"},
		"/runs/nope":              {http.StatusNotFound, "purged"},
		"/runs?state=nope":        {http.StatusUnprocessableEntity, "state"},
		"/runs/new?jq=%7B":        {http.StatusOK, "jq expression"},
		"/runs/new?canary=x":      {http.StatusOK, "such as 1, 10, 100"},
		"/retention?days=9":       {http.StatusUnprocessableEntity, "choose resolved, discarded, or both"},
		"/entries/act?do=resolve": {http.StatusUnprocessableEntity, "select some entries"},
		"/jobs/nope":              {http.StatusNotFound, "is safe to repeat"},
		"/nowhere":                {http.StatusNotFound, "no such page"},
	} {
		w := s.get(access.Admin, path)
		require.Equal(t, want.status, w.Code, path)
		require.Contains(t, strings.ToLower(w.Body.String()), strings.ToLower(want.says), path)
	}
	s.store.down.Store(true)
	for _, page := range []string{"/", "/groups", "/report", "/entries", "/audit", "/retention"} {
		w := s.get(access.Admin, page)
		require.Equal(t, http.StatusServiceUnavailable, w.Code, page)
		require.Contains(t, w.Body.String(), "retries automatically")
		require.Contains(t, w.Body.String(), "data-every", "it does")
	}
	s.store.down.Store(false)
	require.Equal(t, http.StatusOK, s.get(access.Admin, "/").Code)
}

// Only a store that is down is called that; an error of a store that answers is shown with its reason
// to admins, and to everyone with ShowFaults.
func TestPages_FaultsOfAStoreThatAnswers(t *testing.T) {
	s := newSite(t, func(c *operations.Config) { c.Interval = time.Nanosecond })
	s.store.broken.Store(true)
	w := s.get(access.Viewer, "/groups")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.NotContains(t, w.Body.String(), "The store does not answer")
	require.Contains(t, w.Body.String(), "The store answers, but this page failed")
	require.NotContains(t, w.Body.String(), errDown.Error())
	require.Contains(t, s.get(access.Admin, "/groups").Body.String(), errDown.Error())
	cfg := s.config()
	cfg.Interval, cfg.ShowFaults = time.Nanosecond, true
	s.handler = New(cfg)
	require.Contains(t, s.get(access.Viewer, "/groups").Body.String(), errDown.Error())
	s.store.broken.Store(false)
	s.store.down.Store(true)
	w = s.get(access.Viewer, "/groups")
	require.Contains(t, w.Body.String(), "The store does not answer")
}

// If the store fails after some of many entries were changed, the page shows their number, and its error to admins, as
// far as they may see it.
func TestPages_HalfDone(t *testing.T) {
	s := newSite(t)
	rules, err := redact.New(redact.Config{Texts: []string{"ana@[a-z]+"}})
	require.NoError(t, err)
	j := &job{
		Err: fmt.Errorf("%w: ana@example", errDown), Said: "3 entries discarded.", Back: "/entries?status=PENDING",
		done: make(chan struct{}),
	}
	close(j.done)
	for _, role := range []access.Role{access.Operator, access.Admin} {
		for name, look := range map[string]func(*request) error{
			"the answer": func(r *request) error { return j.fault(r.Context()) }, "the page of the job": (*request).job,
		} {
			w := httptest.NewRecorder()
			r := &request{
				Request:   httptest.NewRequest(http.MethodPost, prefix+"/entries/act", http.NoBody),
				dashboard: &dashboard{cfg: s.config(), cache: newCache(0), jobs: &jobs{all: map[string]*job{"": j}}}, w: w,
				who: access.Principal{Name: "ana", Role: role}, sees: visible.New(rules, "no one", nil),
			}
			if err := look(r); err != nil {
				r.fail(err)
			}
			for _, says := range []string{"3 entries discarded.", "safe", "Continue"} {
				require.Contains(t, w.Body.String(), says, name)
			}
			require.Equal(t, role == access.Admin, strings.Contains(w.Body.String(), errDown.Error()), name)
			require.NotContains(t, w.Body.String(), "ana@", name)
		}
	}
}

// A difference of a million lines is not a page of a hundred megabytes, again at each refresh.
func TestEntry_LongDifference(t *testing.T) {
	s := newSite(t)
	id := s.put(t, 1, func(d *envelope.DeadLetter) { d.Message.Payload = []byte(strings.Repeat("a\n", 1<<19)) })
	_, _, err := s.manager.Edit(t.Context(), id, dlq.Edit{Payload: []byte(strings.Repeat("b\n", 1<<19))}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	w := s.get(access.Viewer, "/entries/1")
	require.Equal(t, http.StatusOK, w.Code)
	require.Less(t, w.Body.Len(), 2<<20)
	require.Contains(t, w.Body.String(), `<div class="gone"><span>−</span><code>a</code></div>`)
	require.Contains(t, w.Body.String(), "the first 5,000 of 1,048,577 lines")
}

// An edit that is saved but not sent states the reason: a refusal's for everyone.
func TestPages_SavedNotSent(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		title string
		says  bool
	}{
		"a conflict": {fmt.Errorf("entry 7 was redriven by bo: %w", dlq.ErrConflict), "Saved, but not sent", true},
		"a limit":    {fmt.Errorf("dlq: %w: 100 bytes", dlq.ErrInvalid), "Saved, but not sent", true},
		"the store":  {errDown, "Saved, but not sent", false},
		"the broker": {fmt.Errorf("%w: no queue", dlq.ErrPublish), "Saved, but not sent", false},
		"no answer":  {errors.Join(dlq.ErrPublish, context.DeadlineExceeded), "Saved, but perhaps not sent", false},
	} {
		f, ok := errors.AsType[*fault](savedNotSent(t.Context(), &dlq.Entry{ID: 7}, test.err))
		require.True(t, ok)
		require.Equal(t, test.title, f.Title, name)
		require.Equal(t, test.says, strings.Contains(f.Detail, test.err.Error()), "%s: %s", name, f.Detail)
	}
}

// A form without entries does not mean all of them.
func TestPages_ActOnNothing(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	w := s.post(access.Admin, "/entries/act", url.Values{"do": {"discard"}, "note": {"oops"}})
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	e, err := s.manager.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
}

// A person who presses a button on an old page learns who was faster.
func TestPages_Conflict(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	_, err := s.manager.Discard(t.Context(), 1, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	w := s.post(access.Operator, "/entries/1", url.Values{"do": {"resolve"}, "version": {"1"}})
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "by bob")
}

// Of a process that lags behind, the page shows which of the two it has not done yet.
func TestPages_Live(t *testing.T) {
	texts := map[bool]string{true: "1 process has not paused yet", false: "1 process has not resumed yet"}
	for paused, want := range texts {
		var out strings.Builder
		s := liveService{Service: driver.Service{Name: "shop", Pause: driver.IntakePause{Paused: paused}}, Pausing: 1}
		require.NoError(t, pages()["live"].ExecuteTemplate(&out, "main",
			&view{Data: &liveData{Services: []liveService{s}}}))
		require.Contains(t, out.String(), want)
	}
}

// Each kind of waiting has a column, and what waits behind a retry of its key is not ready.
func TestLiveOf_Kinds(t *testing.T) {
	n := &nowData{}
	for i, kind := range []string{"delayed", "retry", "parked", "ready", "dead_letter"} {
		n.depths = append(n.depths, operations.Depth{Topic: "orders", Group: "pay", Kind: kind, Messages: 1 << i})
	}
	data := liveOf(n, func(text string) string { return text })
	require.Equal(t, []liveQueue{{
		Topic: "orders", Consumer: "pay", Counted: true, Delayed: 1, Retry: 2 + 4, Ready: 8, Dead: 16,
	}}, data.Queues)
	require.Equal(t, int64(8), data.Ready)
}

// An approver reads of an entry that it would be skipped, or what would be sent, not both.
func TestPages_Review(t *testing.T) {
	var out strings.Builder
	data := &runData{Review: &wire.RunReview{Sample: []wire.SampleEntry{{Problem: "jq: no number"}}}}
	require.NoError(t, pages()["run"].ExecuteTemplate(&out, "main", &view{Data: data}))
	require.Contains(t, out.String(), "Would be skipped: jq: no number")
	require.NotContains(t, out.String(), "Sent unchanged")
}

// Settings and topology are shown as text.
func TestPages_System(t *testing.T) {
	s := newSite(t, func(c *operations.Config) {
		c.Settings = map[string]any{"key": `<script>alert(1)</script>`}
		c.Topology = func(context.Context) (any, error) { return nil, errDown }
	})
	admin, viewer := s.get(access.Admin, "/system").Body.String(), s.get(access.Viewer, "/system").Body.String()
	require.Contains(t, admin, "&lt;script&gt;alert(1)")
	require.NotContains(t, viewer, "alert(1)", "settings are for admins")
	require.Contains(t, viewer, "connection refused")
}

// A page is compressed if the browser accepts that.
func TestPages_Compressed(t *testing.T) {
	s := newSite(t)
	r := httptest.NewRequest(http.MethodGet, prefix+"/", http.NoBody)
	r.Header.Set("Accept-Encoding", "gzip")
	w := s.send(access.Viewer, r)
	require.Equal(t, "gzip", w.Header().Get("Content-Encoding"))
	zipped, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	require.Less(t, len(zipped), len(s.get(access.Viewer, "/").Body.Bytes())/2)
}

// gone is a redriver whose consumer is gone.
type gone struct{ dlq.Redriver }

func (gone) Readers(context.Context, envelope.Origin) (int, error) { return 0, nil }

// Before starting a run a person sees that no consumer would read it.
func TestPages_NoReader(t *testing.T) {
	s := newSite(t)
	s.put(t, 1)
	const warning = "no consumer reads orders of billing now"
	require.NotContains(t, s.get(access.Operator, "/runs/new").Body.String(), warning, "not known")
	sent := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: s.store, Redriver: gone{sent}})
	require.NoError(t, err)
	s.runner, err = redrive.NewRunner(manager, redrive.Config{})
	require.NoError(t, err)
	s.handler = New(s.config())
	require.Contains(t, s.get(access.Operator, "/runs/new").Body.String(), warning)
}
