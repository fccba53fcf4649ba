package dlqhttp_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/dlq/redrive"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// client returns a client with the token of a user.
func (s *server) client(t *testing.T, name string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Server: s.url, Token: tokens[name]})
	require.NoError(t, err)
	return c
}

// problem returns the server's problem for a refused request.
func problem(t *testing.T, err error, status int) wire.Problem {
	t.Helper()
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, status, refused.Status, err)
	return refused.Problem
}

// Two operators send the same group back in the same second: every message goes out once, and the second learns who was
// first.
func TestTwoOperators(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	const n = 20
	s.seed(t, n)
	type outcome struct {
		who      string
		won      bool
		conflict *wire.Conflict
	}
	outcomes := make([][]outcome, n+1)
	var mu sync.Mutex
	var racing sync.WaitGroup
	begin := make(chan struct{})
	for _, who := range []string{"ana", "bo"} {
		c := s.client(t, who)
		for id := int64(1); id <= n; id++ {
			racing.Go(func() {
				<-begin
				_, err := c.RedriveEntry(t.Context(), id, client.By{})
				mu.Lock()
				defer mu.Unlock()
				o := outcome{who: who, won: err == nil}
				if refused, ok := errors.AsType[*client.Error](err); ok {
					o.conflict = refused.Problem.Conflict
				} else if err != nil {
					t.Errorf("%s: entry %d: %v", who, id, err)
					return
				}
				outcomes[id] = append(outcomes[id], o)
			})
		}
	}
	close(begin)
	racing.Wait()
	require.Equal(t, n, s.sent.count())
	for id := 1; id <= n; id++ {
		require.Len(t, outcomes[id], 2)
		winner, loser := outcomes[id][0], outcomes[id][1]
		if loser.won {
			winner, loser = loser, winner
		}
		require.True(t, winner.won)
		require.False(t, loser.won)
		require.NotNil(t, loser.conflict)
		require.Equal(t, winner.who, loser.conflict.By)
		require.Equal(t, string(dlq.Retrying), loser.conflict.Status)
		require.Equal(t, wire.Action("redrive"), loser.conflict.Action)
	}

	// The same with the group as a run: the second finds nothing left, or is refused by the run's id.
	spec := wire.RunSpec{ID: "the-group", Filter: wire.Filter{Topic: "orders"}, CloseOnPublish: true}
	_, err := s.client(t, "ana").StartRun(t.Context(), spec, client.By{})
	require.NoError(t, err)
	_, err = s.client(t, "bo").StartRun(t.Context(), spec, client.By{})
	require.Contains(t, problem(t, err, http.StatusConflict).Detail, "ana")
}

// A request with a key is done once: a repetition gets the first answer, another body is refused, and so is a
// repetition while the first is still running.
func TestIdempotencyKey(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 4)
	header := append(as("ana"), "Content-Type", "application/json", "Idempotency-Key", "k1")
	first := s.ask(t, http.MethodPost, "/api/v1/entries/1/redrive", `{"note":"a"}`, header...)
	require.Equal(t, http.StatusAccepted, first.status, first.body)
	again := s.ask(t, http.MethodPost, "/api/v1/entries/1/redrive", `{"note":"a"}`, header...)
	require.Equal(t, http.StatusAccepted, again.status)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	require.Equal(t, first.header.Get("ETag"), again.header.Get("ETag"))
	require.Equal(t, 1, s.sent.count())
	for name, path := range map[string]string{
		"another body":  "/api/v1/entries/1/redrive",
		"another entry": "/api/v1/entries/2/redrive",
	} {
		other := s.ask(t, http.MethodPost, path, `{"note":"b"}`, header...)
		require.Equal(t, http.StatusUnprocessableEntity, other.status, name)
		require.Contains(t, other.body, "used before")
	}
	// Keys are separate for each principal.
	bo := s.ask(t, http.MethodPost, "/api/v1/entries/2/redrive", "", append(as("bo"), "Idempotency-Key", "k1")...)
	require.Equal(t, http.StatusAccepted, bo.status, bo.body)
	// A refusal that does not depend on the request is not kept.
	s.sent.mu.Lock()
	s.sent.fail = errBroker
	s.sent.mu.Unlock()
	down := s.ask(t, http.MethodPost, "/api/v1/entries/3/redrive", "", append(as("ana"), "Idempotency-Key", "k3")...)
	require.Equal(t, http.StatusServiceUnavailable, down.status)
	require.NotEmpty(t, down.header.Get("Retry-After"))
	s.sent.mu.Lock()
	s.sent.fail = nil
	s.sent.mu.Unlock()
	up := s.ask(t, http.MethodPost, "/api/v1/entries/3/redrive", "", append(as("ana"), "Idempotency-Key", "k3")...)
	require.Equal(t, http.StatusAccepted, up.status, up.body)

	// While the first request with a key is in flight, the second has to wait.
	held, release := make(chan struct{}), make(chan struct{})
	s.sent.mu.Lock()
	s.sent.hold = func() { close(held); <-release }
	s.sent.mu.Unlock()
	slow := make(chan *answer, 1)
	go func() {
		slow <- s.ask(t, //nolint:testifylint // a request that cannot be sent ends this goroutine, and the test by its deadline
			http.MethodPost, "/api/v1/entries/4/redrive", "", append(as("ana"), "Idempotency-Key", "k4")...)
	}()
	<-held
	meanwhile := s.ask(t, http.MethodPost, "/api/v1/entries/4/redrive", "", append(as("ana"), "Idempotency-Key", "k4")...)
	require.Equal(t, http.StatusConflict, meanwhile.status)
	require.Contains(t, meanwhile.body, "still in progress")
	close(release)
	require.Equal(t, http.StatusAccepted, (<-slow).status)
	require.Equal(t, 4, s.sent.count())
}

// A run that was started with a key is the same run for another server on the same store: the key outlives a restart.
func TestIdempotencyKey_RunOutlivesTheServer(t *testing.T) {
	s := newServer(t)
	s.seed(t, 4)
	header := []string{"Content-Type", "application/json", "Idempotency-Key", "night"}
	const body = `{"filter":{"topic":"orders","ids":[]},"canary":[],"rate":5}`
	first := s.ask(t, http.MethodPost, "/api/v1/runs", body, header...)
	require.Equal(t, http.StatusAccepted, first.status, first.body)
	require.Equal(t, "/api/v1/runs/"+first.at(t, "id").(string), first.header.Get("Location"))

	other := s.restarted(t)
	again := other.ask(t, http.MethodPost, "/api/v1/runs", body, header...)
	require.Equal(t, http.StatusAccepted, again.status, again.body)
	require.Equal(t, first.at(t, "id"), again.at(t, "id"))
	differs := other.restarted(t).ask(t, http.MethodPost, "/api/v1/runs", strings.Replace(body, "5", "6", 1), header...)
	require.Equal(t, http.StatusUnprocessableEntity, differs.status, differs.body)
	runs, _, err := s.runner.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, runs, 1)
}

// A key means the same run after the run was paused while it was prepared, and after one that was started paused was
// resumed: both change the run's spec.
func TestIdempotencyKey_RunPausedAndResumed(t *testing.T) {
	for name, paused := range map[string]string{"paused": "", "resumed": `,"paused":true`} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			s.seed(t, 4)
			header := []string{"Content-Type", "application/json", "Idempotency-Key", "night"}
			body := `{"filter":{"topic":"orders"},"rate":5` + paused + `}`
			first := s.ask(t, http.MethodPost, "/api/v1/runs", body, header...)
			require.Equal(t, http.StatusAccepted, first.status, first.body)
			id := first.at(t, "id").(string)
			if paused != "" {
				_, err := s.runner.ResumeRun(t.Context(), id, dlq.By{Actor: "eve"})
				require.NoError(t, err)
			} else {
				run, err := s.runner.Run(t.Context(), id)
				require.NoError(t, err)
				run.Spec.Paused = true // as by a pause while it was prepared
				run.Version++
				require.NoError(t, s.letters.Store().(redrive.Store).ChangeRun(t.Context(), run, driver.AuditRecord{
					At: time.Now(), Actor: "eve", Action: redrive.ActionPause, Run: id, Version: run.Version,
				}))
			}
			again := s.restarted(t).ask(t, http.MethodPost, "/api/v1/runs", body, header...)
			require.Equal(t, http.StatusAccepted, again.status, again.body)
			require.Equal(t, id, again.at(t, "id"))
		})
	}
}

// The four routes of older services, word for word, under /api/v1/validation.
func TestValidationRoutes_C22toC25(t *testing.T) {
	s := newServer(t)
	s.seed(t, 4)
	_, err := s.manager.Discard(t.Context(), 4, dlq.By{Actor: "eve"})
	require.NoError(t, err)
	var list []map[string]any
	a := s.ask(t, http.MethodGet, "/api/v1/validation/dlq", "")
	require.Equal(t, http.StatusOK, a.status)
	a.json(t, &list)
	require.Len(t, list, 3, "PENDING by default")
	require.InDelta(t, 3, list[0]["id"], 0, "newest first")
	for _, column := range []string{
		"event_id", "event_type", "error_message", "retry_count", "max_retries", "status",
		"created_at", "kafka_topic",
	} {
		require.Contains(t, list[0], column)
	}
	s.ask(t, http.MethodGet, "/api/v1/validation/dlq?status=DISCARDED", "").json(t, &list)
	require.Len(t, list, 1)
	page := s.ask(t, http.MethodGet, "/api/v1/validation/dlq?limit=2", "")
	require.Contains(t, page.header.Get("Link"), `rel="next"`)

	require.Equal(t, http.StatusAccepted, s.ask(t, http.MethodPost, "/api/v1/validation/dlq/1/retry", "").status)
	require.Equal(t, 1, s.sent.count())
	resolved := s.ask(t, http.MethodPut, "/api/v1/validation/dlq/2/resolve?resolvedBy=joana", "")
	require.Equal(t, http.StatusOK, resolved.status)
	require.Equal(t, "joana", resolved.at(t, "resolved_by"))
	discarded := s.ask(t, http.MethodDelete, "/api/v1/validation/dlq/3", "")
	require.Equal(t, http.StatusNoContent, discarded.status)
	require.Empty(t, discarded.body)
	e, err := s.manager.Get(t.Context(), 3)
	require.NoError(t, err, "not a row delete")
	require.Equal(t, dlq.Discarded, e.Status)
	require.Equal(t, http.StatusConflict, s.ask(t, http.MethodDelete, "/api/v1/validation/dlq/3", "").status)
	require.Equal(t, http.StatusConflict, s.ask(t, http.MethodPost, "/api/v1/validation/dlq/2/retry", "").status)

	// With authentication, resolvedBy is only a claim: the entry has it as sent, and the audit log has the caller.
	guarded := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	guarded.seed(t, 1)
	resolved = guarded.ask(t, http.MethodPut, "/api/v1/validation/dlq/1/resolve?resolvedBy=joana", "", as("ana")...)
	require.Equal(t, "joana", resolved.at(t, "resolved_by"))
	records, _, err := guarded.manager.AuditLog(t.Context(), dlq.AuditFilter{EntryID: 1}, dlq.Page{})
	require.NoError(t, err)
	require.Equal(t, "ana", records[0].Actor)
	require.Equal(t, map[string]string{"resolved_by": "joana"}, records[0].Detail)
}
