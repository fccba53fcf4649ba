package dlqhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
)

// A run through the client, from the dry run over a second person's approval to its end, watched as it goes.
func TestRun_ThroughTheClient(t *testing.T) {
	s := newServerWith(t, &dlq.Approval{Above: 2},
		func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 6)
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- s.runner.Work(ctx) }()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-worked, context.Canceled)
	})
	ana, approver := s.client(t, "ana"), s.client(t, "approver")
	spec := wire.RunSpec{Filter: wire.Filter{Topic: "orders"}, JQ: `.currency //= "EUR"`}

	preview, err := ana.PreviewRun(t.Context(), spec, 2)
	require.NoError(t, err)
	require.Equal(t, int64(6), preview.Count)
	require.True(t, preview.NeedsApproval)
	require.Len(t, preview.Sample, 2)
	require.Len(t, preview.Destinations, 1)
	require.Equal(t, []any{"orders", -1}, []any{preview.Destinations[0].Topic, preview.Destinations[0].Readers})
	require.Contains(t, preview.Sample[0].Diff.Lines, wire.DiffLine{Op: "+", Text: `  "currency": "EUR"`})
	require.Equal(t, 0, s.sent.count())

	spec.CloseOnPublish, spec.Canary = true, []int{1}
	started, err := ana.StartRun(t.Context(), spec, client.By{Note: "the bank is open"})
	require.NoError(t, err)
	id := started.ID
	require.Equal(t, redrive.AwaitingApproval, started.State)
	require.Equal(t, "the bank is open", started.Note)

	events := s.watch(t, id)
	require.Equal(t, "awaiting_approval", (<-events).state)
	for name, who := range map[string]string{"the same person": "ana", "a viewer": "viewer"} {
		_, err := s.client(t, who).ApproveRun(t.Context(), id, client.By{})
		require.NotEmpty(t, problem(t, err, http.StatusForbidden).Detail, name)
	}
	approved, err := approver.ApproveRun(t.Context(), id, client.By{Note: "looks right"})
	require.NoError(t, err)
	require.Equal(t, "approver", approved.ApprovedBy)

	var last event
	for e := range events {
		last = e
	}
	require.Equal(t, event{"end", "completed", 6}, last)
	require.Equal(t, 6, s.sent.count())
	require.Contains(t, string(s.sent.messages[0].Payload), `"currency":"EUR"`)

	items, err := ana.ListRunItems(t.Context(), id, wire.ItemFilter{Limit: 4})
	require.NoError(t, err)
	require.Len(t, items.Items, 4)
	items, err = ana.ListRunItems(t.Context(), id, wire.ItemFilter{After: items.Next})
	require.NoError(t, err)
	require.Len(t, items.Items, 2)
	require.Zero(t, items.Next)
	_, err = ana.CancelRun(t.Context(), id, client.By{})
	require.Equal(t, id, problem(t, err, http.StatusConflict).Conflict.Run)
	diff, err := ana.DiffRevisions(t.Context(), 1, 0, -1)
	require.NoError(t, err)
	require.True(t, diff.PayloadChanged)
}

// event is an event of a progress stream.
type event struct {
	name, state string
	succeeded   int64
}

// watch reads a progress stream to its end.
func (s *server) watch(t *testing.T, id string) <-chan event {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/api/v1/runs/"+id+"/events", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+tokens["viewer"])
	response, err := http.DefaultTransport.RoundTrip(r) //nolint:bodyclose // closed below, where it is read
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	events := make(chan event, 100)
	go func() {
		defer close(events)
		defer func() { _ = response.Body.Close() }() // it was read
		var e event
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				e = event{name: name}
			}
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var run wire.Run
				if err := json.Unmarshal([]byte(data), &run); err != nil {
					t.Errorf("%s: %v", data, err)
					return
				}
				e.state, e.succeeded = string(run.State), run.Counts.Succeeded
				events <- e
			}
		}
	}()
	return events
}

// A server that shuts down ends its streams, and one that is full refuses more of them.
func TestStreams(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Limits.Streams = bearer(t), 1 })
	s.seed(t, 2)
	_, err := s.runner.StartRun(t.Context(), redrive.Spec{ID: "slow", Filter: dlq.Filter{Topic: "orders"}, Paused: true},
		dlq.By{Actor: "ana"})
	require.NoError(t, err)
	events := s.watch(t, "slow")
	require.Equal(t, "paused", (<-events).state)
	full := s.ask(t, http.MethodGet, "/api/v1/runs/slow/events", "", as("viewer")...)
	require.Equal(t, http.StatusServiceUnavailable, full.status)
	require.NotEmpty(t, full.header.Get("Retry-After"))
	s.handler.EndStreams()
	_, more := <-events
	require.False(t, more)
}

// panicking panics when a run is read, once it is armed.
type panicking struct {
	*sqlstore.Store

	now atomic.Bool
}

func (p *panicking) Run(ctx context.Context, id string) (*redrive.Run, error) {
	if p.now.Load() {
		panic("boom")
	}
	return p.Store.Run(ctx, id)
}

// A stream reads its run in another goroutine: when that panics, the stream ends, its slot is free, and the process
// lives.
func TestStreams_Panic(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Limits.Streams = bearer(t), 1 })
	s.seed(t, 1)
	_, err := s.runner.StartRun(t.Context(), redrive.Spec{ID: "slow", Paused: true}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	runs, ok := driver.As[*sqlstore.Store](s.letters.Store())
	require.True(t, ok)
	store := &panicking{Store: runs}
	watched, err := dlq.NewManager(dlq.ManagerConfig{Store: store})
	require.NoError(t, err)
	s.cfg.Runner, err = redrive.NewRunner(watched, redrive.Config{})
	require.NoError(t, err)
	s = s.restarted(t)
	events := s.watch(t, "slow")
	require.Equal(t, "paused", (<-events).state)
	store.now.Store(true)
	_, more := <-events
	require.False(t, more)
	require.Contains(t, s.log.String(), "progress stream ended")
	require.Contains(t, s.log.String(), "boom")
	store.now.Store(false)
	require.Equal(t, "paused", (<-s.watch(t, "slow")).state)
	s.handler.EndStreams()
}

// The list continues page by page over the runs of its start, by the Link header and by the cursor.
func TestPages(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Prefix = "/ops" })
	s.seed(t, 7)
	var seen []any
	next := "/api/v1/entries?limit=3&topic=orders&order=oldest"
	for next != "" {
		a := s.ask(t, http.MethodGet, next, "")
		require.Equal(t, http.StatusOK, a.status, a.body)
		entries, ok := a.at(t, "entries").([]any)
		require.True(t, ok)
		for _, e := range entries {
			object, ok := e.(map[string]any)
			require.True(t, ok)
			seen = append(seen, object["id"])
		}
		next = ""
		if link := a.header.Get("Link"); link != "" {
			path, ok := strings.CutSuffix(strings.TrimPrefix(link, "<"), `>; rel="next"`)
			require.True(t, ok, link)
			next = strings.TrimPrefix(path, "/ops")
			require.NotEqual(t, path, next, "the link has the prefix")
		}
	}
	require.Equal(t, []any{1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0}, seen)
	a := s.ask(t, http.MethodGet, "/api/v1/entries?status=PENDING,PARKED&reason=permanent&redrives=0", "")
	require.Len(t, a.at(t, "entries"), 4)
	a = s.ask(t, http.MethodGet, "/api/v1/entries/count?ids=1,2,99", "")
	require.InDelta(t, 2, a.at(t, "count"), 0)
}

// No route or page lets one person send more alone than allowed; a refusal has changed nothing. The approver sees the
// details on the page too.
func TestApproval_EveryRoute(t *testing.T) {
	limit := &dlq.Approval{Above: 1}
	s := newServerWith(t, limit, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	var err error
	s.cfg.Manager, err = dlq.NewManager(dlq.ManagerConfig{Store: s.letters.Store(), Redriver: s.sent, Approval: limit})
	require.NoError(t, err)
	s = s.restarted(t)
	s.seed(t, 6)
	form := append(as("ana"), "Content-Type", "application/x-www-form-urlencoded")
	body := append(as("ana"), "Content-Type", "application/json")
	require.Equal(t, http.StatusAccepted, s.ask(t, http.MethodPost, "/api/v1/entries/1/redrive", "", as("ana")...).status)
	before := s.dump(t)
	for name, a := range map[string]*answer{
		"redrive":      s.ask(t, http.MethodPost, "/api/v1/entries/2/redrive", "", as("ana")...),
		"edit":         s.ask(t, http.MethodPost, "/api/v1/entries/2/edit", `{"payload":"{}","redrive":true}`, body...),
		"page":         s.ask(t, http.MethodPost, "/entries/2", "do=redrive", form...),
		"page of edit": s.ask(t, http.MethodPost, "/entries/2/edit", "do=redrive&payload=%7B%7D", form...),
	} {
		require.Equal(t, http.StatusForbidden, a.status, "%s: %s", name, a.body)
		require.Contains(t, a.body, "alone", name)
	}
	require.Equal(t, before, s.dump(t))
	a := s.ask(t, http.MethodPost, "/api/v1/runs", `{"id":"one","filter":{"ids":[2]},"note":"the bank is open"}`, body...)
	require.Equal(t, "awaiting_approval", a.at(t, "state"), a.body)
	a = s.ask(t, http.MethodPatch, "/api/v1/runs/one", `{"stop":{"share":1,"min_sample":1}}`, body...)
	require.Equal(t, http.StatusConflict, a.status, a.body)
	a = s.ask(t, http.MethodGet, "/api/v1/runs/one/review", "", as("approver")...)
	require.Equal(t, "the bank is open", a.at(t, "run.note"))
	var review wire.RunReview
	a.json(t, &review)
	require.Equal(t, []wire.TopicCount{{Topic: "orders", Count: 1}}, review.Topics)
	require.Equal(t, int64(1), review.Causes[0].Count)
	require.Contains(t, review.Causes[0].Cause, "timeout")
	require.Len(t, review.Sample, 1)
	page := s.ask(t, http.MethodGet, "/runs/one", "", as("approver")...)
	for _, part := range []string{"the bank is open", "What would be sent", review.Causes[0].Cause, "orders"} {
		require.Contains(t, page.body, part)
	}
	require.Equal(t, http.StatusForbidden, s.ask(t, http.MethodPost, "/api/v1/runs/one/approve", "", as("ana")...).status)
	require.Equal(t, http.StatusOK, s.ask(t, http.MethodPost, "/api/v1/runs/one/approve", "", as("approver")...).status)
}
