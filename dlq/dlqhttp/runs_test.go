package dlqhttp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqclient"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
)

// A run through the generated client, from the dry run over a second person's approval to its end, watched as it goes.
func TestRun_ThroughTheClient(t *testing.T) {
	s := newServerWith(t, []dlq.ManagerOption{dlq.WithApproval(2)}, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 6)
	ctx, stop := context.WithCancel(t.Context())
	worked := make(chan error, 1)
	go func() { worked <- s.manager.Work(ctx) }()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-worked, context.Canceled)
	})
	ana, approver := s.client(t, "ana"), s.client(t, "approver")
	filter := dlqclient.Filter{Topic: new("orders")}

	preview, err := ana.PreviewRunWithResponse(t.Context(), dlqclient.RunPreviewRequest{Filter: filter, Jq: new(`.currency //= "EUR"`), Sample: new(int64(2))})
	require.NoError(t, err)
	require.NotNil(t, preview.JSON200, string(preview.Body))
	require.Equal(t, int64(6), preview.JSON200.Count)
	require.True(t, preview.JSON200.NeedsApproval)
	require.Len(t, preview.JSON200.Sample, 2)
	require.Contains(t, string(preview.Body), `\"currency\": \"EUR\"`)
	require.Equal(t, 0, s.sent.count())

	started, err := ana.StartRunWithResponse(t.Context(), nil, dlqclient.RunRequest{
		Filter: filter, Jq: new(`.currency //= "EUR"`), CloseOnPublish: new(true), Canary: &[]int64{1}, Note: new("the bank is open"),
	})
	require.NoError(t, err)
	require.NotNil(t, started.JSON202, string(started.Body))
	id := started.JSON202.Id
	require.Equal(t, dlqclient.RunStateAwaitingApproval, started.JSON202.State)

	events := s.watch(t, id)
	require.Equal(t, "awaiting_approval", (<-events).state)
	for name, who := range map[string]string{"the same person": "ana", "a viewer": "viewer"} {
		refused, err := s.client(t, who).ApproveRunWithResponse(t.Context(), id, nil, dlqclient.Note{})
		require.NoError(t, err)
		require.Equal(t, http.StatusForbidden, refused.StatusCode(), name)
	}
	approved, err := approver.ApproveRunWithResponse(t.Context(), id, nil, dlqclient.Note{Note: new("looks right")})
	require.NoError(t, err)
	require.NotNil(t, approved.JSON200, string(approved.Body))
	require.Equal(t, "approver", *approved.JSON200.ApprovedBy)

	var last event
	for e := range events {
		last = e
	}
	require.Equal(t, event{"end", "completed", 6}, last)
	require.Equal(t, 6, s.sent.count())
	require.Contains(t, string(s.sent.messages[0].Payload), `"currency":"EUR"`)

	items, err := ana.ListRunItemsWithResponse(t.Context(), id, &dlqclient.ListRunItemsParams{Limit: new(int64(4))})
	require.NoError(t, err)
	require.Len(t, items.JSON200.Items, 4)
	items, err = ana.ListRunItemsWithResponse(t.Context(), id, &dlqclient.ListRunItemsParams{After: items.JSON200.Next})
	require.NoError(t, err)
	require.Len(t, items.JSON200.Items, 2)
	require.Nil(t, items.JSON200.Next)
	over, err := ana.CancelRunWithResponse(t.Context(), id, nil, dlqclient.Note{})
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, over.StatusCode())
	require.Equal(t, id, *over.ApplicationproblemJSONDefault.Conflict.Run)
	diff, err := ana.DiffRevisionsWithResponse(t.Context(), 1, nil)
	require.NoError(t, err)
	require.True(t, diff.JSON200.PayloadChanged)
}

// event is what a progress stream says.
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
				var run dlqclient.Run
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

// A server that shuts down ends its streams, and refuses more of them than it has places for.
func TestStreams(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Limits.Streams = bearer(t), 1 })
	s.seed(t, 2)
	_, err := s.manager.StartRun(t.Context(), dlq.RunSpec{ID: "slow", Filter: dlq.Filter{Topic: "orders"}, Paused: true}, dlq.By{Actor: "ana"})
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

// The list goes on page by page over what was there, by the Link header as by the cursor.
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
