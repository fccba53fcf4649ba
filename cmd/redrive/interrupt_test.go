package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// interruptible seeds a store and the queue of its dead letters, and opens the store.
func interruptible(t *testing.T) (store, queue string, letters *dlq.Letters) {
	t.Helper()
	hermetic(t)
	dir := t.TempDir()
	store, queue = filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seed(t, store)
	seedQueue(t, queue)
	letters, err := dlq.Open(t.Context(), store, dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	return store, queue, letters
}

// Ctrl-C in the middle of a run pauses it and prints how to continue; that continues with the rest, and sends nothing
// twice.
func TestRedrive_InterruptAndResume(t *testing.T) {
	store, queue, letters := interruptible(t)
	common := []string{"--store", store, "--broker", "sqlite:" + queue}
	_, stderr, stop := start(t, append([]string{
		"dlq", "redrive", "--handler", "pay", "--rate", "0.02", "--yes", "--id", "slow", "--close-on-publish",
	}, common...)...)
	manager := letters.Manager(nil)
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		run, err := runner.Run(t.Context(), "slow")
		return err == nil && run.Counts.Succeeded > 0
	}, 2*time.Minute, 5*time.Millisecond, stderr)
	require.Equal(t, exitInterrupted, stop(), stderr)
	require.Contains(t, stderr.String(), "interrupted: run slow is paused; to continue: redrive runs resume slow")
	run, err := runner.Run(t.Context(), "slow")
	require.NoError(t, err)
	require.Equal(t, redrive.Paused, run.State)
	require.Positive(t, run.Counts.Waiting)

	var out, faults bytes.Buffer
	require.Equal(t, exitOK, play1(t, append([]string{"runs", "adjust", "slow", "--rate", "0"}, common...), &out, &faults),
		faults.String())
	require.Equal(t, exitOK, play1(t, append([]string{"runs", "resume", "slow"}, common...), &out, &faults),
		faults.String())
	require.Contains(t, out.String(), "run slow: completed\n5 of 5 done: 5 succeeded")
	list, err := manager.List(t.Context(), dlq.Filter{}, dlq.Page{})
	require.NoError(t, err)
	for _, e := range list.Entries {
		require.Equal(t, 1, e.RedriveCount, "entry %d", e.ID)
	}
}

// Ctrl-C while a run is prepared: it was said to be paused, but a server would have prepared it to its end and sent it.
func TestRedrive_InterruptWhilePreparing(t *testing.T) {
	store, queue, letters := interruptible(t)
	prepared(t, letters, "night")

	var out, faults bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &out, err: &faults}
	a.flags.store, a.flags.brokers = store, []string{"sqlite:" + queue}
	ctx, cancel := context.WithCancel(t.Context())
	m, err := a.redriver(ctx)
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, a.interrupted(ctx, m, "a run that was not stored yet"), context.Canceled)
	require.Empty(t, faults.String())
	require.ErrorIs(t, a.interrupted(ctx, m, "night"), context.Canceled)
	require.Contains(t, faults.String(), "interrupted: run night is paused; to continue: redrive runs resume night")
	require.ErrorIs(t, a.interrupted(ctx, m, "night"), context.Canceled)
	require.Contains(t, faults.String(), "interrupted: run night was not running: redrive runs show night")

	// No process prepares it, so nothing would ever change for someone who watches it.
	common := []string{"--store", store}
	require.Equal(t, exitPartial, play1(t, append([]string{"runs", "watch", "night"}, common...), &out, &faults))
	require.Contains(t, out.String(), "run night: preparing, then paused (interrupted)\n")
	require.Contains(t, faults.String(), "to continue: redrive runs resume night")
	out.Reset()
	play1(t, append([]string{"doctor"}, common...), &out, &faults)
	require.Contains(t, out.String(), "run night")
	require.Contains(t, out.String(), "preparing, then paused: interrupted")

	run, err := m.runner.Drive(t.Context(), "night")
	require.NoError(t, err)
	require.Equal(t, []any{redrive.Paused, int64(0)}, []any{run.State, run.Counts.Succeeded}, "nothing is sent")
	require.Equal(t, exitOK, play1(t, []string{"runs", "resume", "night", "--store", store, "--broker", "sqlite:" + queue},
		&out, &faults), faults.String())
	require.Contains(t, out.String(), "run night: completed")
}

// prepared leaves a run whose set is not frozen yet.
func prepared(t *testing.T, letters *dlq.Letters, id string) {
	t.Helper()
	spec, err := redrive.Spec{}.Resolve()
	require.NoError(t, err)
	spec.ID, spec.Stop.Share, spec.CloseOnPublish = id, 1, true
	runs, now := letters.Store().(redrive.Store), time.Now()
	require.NoError(t, runs.CreateRun(t.Context(), &redrive.Run{Run: wire.Run{
		ID: id, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: now, CreatedBy: "ana", ChangedAt: now,
		ChangedBy: "ana", ApprovalAbove: -1,
	}}, driver.AuditRecord{At: now, Actor: "ana", Action: redrive.ActionStart, Run: id}))
}

// Ctrl-C while a server has the request to start or resume a run, and has not stored it yet: the pause found no run, or
// one that was not running, and the run worked.
func TestRedrive_InterruptBeforeTheServerHasStored(t *testing.T) {
	_, _, letters := interruptible(t)
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	api, err := dlqhttp.New(dlqhttp.Config{
		Manager: letters.Manager(nil), Runner: runner, Logger: slog.New(slog.DiscardHandler),
		Auth: []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(func(*http.Request) (dlqhttp.Principal, error) {
			return dlqhttp.Principal{Name: "ana", Role: dlqhttp.Admin}, nil
		})},
	})
	require.NoError(t, err)
	interrupts, paused := make(chan context.CancelFunc, 1), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch what := path.Base(r.URL.Path); {
		case what == "pause":
			defer func() { paused <- struct{}{} }()
		case r.Method == http.MethodPost && (what == "runs" || what == "resume"):
			body, err := io.ReadAll(r.Body) // only then does the server notice that the client leaves
			assert.NoError(t, err)
			r.Body = io.NopCloser(bytes.NewReader(body))
			(<-interrupts)()
			select {
			case <-r.Context().Done():
				<-paused
			case <-time.After(100 * time.Millisecond): // it waits
			}
			r = r.WithContext(context.WithoutCancel(r.Context()))
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)

	for _, args := range [][]string{
		{"dlq", "redrive", "--handler", "pay", "--yes", "--id", "night"},
		{"runs", "resume", "night"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		interrupts <- cancel
		var out, faults bytes.Buffer
		code := runContext(ctx, append(args, "--server", server.URL), strings.NewReader(""), &out, &faults)
		require.Equal(t, exitInterrupted, code, faults.String())
		require.Contains(t, faults.String(), "interrupted: run night is paused")
		run, err := runner.Run(t.Context(), "night")
		require.NoError(t, err)
		require.Equal(t, redrive.Paused, run.State)
		<-paused
	}
}

// Ctrl-C while a run is started whose id is taken: the run of that id, which someone else has started, was paused. And
// a run whose answer was lost is found again by the id that the command gave it; it was refused as the second of it.
func TestRedrive_StartIsAmbiguous(t *testing.T) {
	_, _, letters := interruptible(t)
	prepared(t, letters, "night")
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	require.NoError(t, err)

	api := func() http.Handler { // each is another server on the store, with nothing in memory of earlier requests
		h, err := dlqhttp.New(dlqhttp.Config{
			Manager: letters.Manager(nil), Runner: runner, Logger: slog.New(slog.DiscardHandler),
			Auth: []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(func(*http.Request) (dlqhttp.Principal, error) {
				return dlqhttp.Principal{Name: "ana", Role: dlqhttp.Admin}, nil
			})},
		})
		require.NoError(t, err)
		return h
	}
	var interrupt atomic.Value // context.CancelFunc
	var starts atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/runs") && !strings.HasSuffix(r.URL.Path, "/resume") ||
			r.Method != http.MethodPost {
			api().ServeHTTP(w, r)
			return
		}
		nth, interrupt := starts.Add(1), interrupt.Load().(context.CancelFunc) // the next part of the test changes them
		answer := httptest.NewRecorder()
		api().ServeHTTP(answer, r)
		interrupt()
		if nth == 1 {
			panic(http.ErrAbortHandler) // the answer is lost
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = answer.Body.WriteTo(w)
	}))
	t.Cleanup(server.Close)

	do := func(ctx context.Context, args ...string) (int, string) {
		var out, faults bytes.Buffer
		code := runContext(ctx, append(args, "--server", server.URL), strings.NewReader(""), &out, &faults)
		return code, out.String() + faults.String()
	}
	start := func(ctx context.Context, more ...string) (int, string) {
		return do(ctx, append([]string{"dlq", "redrive", "--handler", "pay", "--yes"}, more...)...)
	}
	ctx, cancel := context.WithCancel(t.Context())
	interrupt.Store(cancel)
	code, text := start(ctx, "--id", "night")
	require.Equal(t, exitInterrupted, code, text)
	run, err := runner.Run(t.Context(), "night")
	require.NoError(t, err)
	require.False(t, run.Spec.Paused, "it is someone else's: %s", text)

	// Resumed, interrupted and paused again, not left to run.
	_, err = runner.PauseRun(t.Context(), "night", dlq.By{Actor: "ana"})
	require.NoError(t, err)
	ctx, cancel = context.WithCancel(t.Context())
	interrupt.Store(cancel)
	starts.Store(0)
	code, text = do(ctx, "runs", "resume", "night")
	require.Equal(t, exitInterrupted, code, text)
	require.Contains(t, text, "interrupted: run night is paused")
	run, err = runner.Run(t.Context(), "night")
	require.NoError(t, err)
	require.True(t, run.Pausing())

	interrupt.Store(context.CancelFunc(func() {}))
	starts.Store(0)
	code, text = start(t.Context(), "--detach")
	require.Equal(t, exitOK, code, text)
	require.EqualValues(t, 2, starts.Load())
	require.Contains(t, text, "is left to redrive serve")
	starts.Store(1) // the first answer arrives
	code, text = start(t.Context(), "--detach", "--id", "night")
	require.NotEqual(t, exitOK, code, "an id that is given is refused if it is taken")
	require.Contains(t, text, "night")
}

// Ctrl-C between ids: the current hour is finished, and the first of the rest is named.
func TestRedrive_InterruptIDs(t *testing.T) {
	store, queue, letters := interruptible(t)
	_, stderr, stop := start(t, "dlq", "redrive", "1-5", "--rate", "0.001", "--store", store, "--broker", "sqlite:"+queue)
	require.Eventually(t, func() bool {
		e, err := letters.Store().Get(t.Context(), 1)
		return err == nil && e.Status == dlq.Retrying && e.Version == 3
	}, 2*time.Minute, 5*time.Millisecond)
	require.Equal(t, exitInterrupted, stop())
	require.Contains(t, stderr.String(), "interrupted: 1 of 5 redriven; the same command continues with the rest, whose "+
		"first is 2")
}

// A watcher does not wait forever for a run that needs a person, and a viewer who leaves is informed that the run
// continues.
func TestRuns_WatchEndsWithTheNextCommand(t *testing.T) {
	hermetic(t)
	store := filepath.Join(t.TempDir(), "dead.db")
	seed(t, store)
	var out, faults bytes.Buffer
	typed := func(args ...string) string {
		out.Reset()
		faults.Reset()
		require.Equal(t, exitOK, play1(t, append(args, "--store", store), &out, &faults), faults.String())
		return out.String() + faults.String()
	}
	typed("dlq", "redrive", "--handler", "pay", "--detach", "--yes", "--id", "night")
	_, stderr, stop := start(t, "runs", "watch", "night", "--store", store)
	require.Equal(t, exitInterrupted, stop())
	require.Contains(t, stderr.String(), "interrupted, but run night continues without you; redrive runs watch "+
		"night shows it again")
	typed("runs", "pause", "night")
	out.Reset()
	require.Equal(t, exitPartial, play1(t, []string{"runs", "watch", "night", "--store", store}, &out, &faults))
	require.Contains(t, out.String(), "run night: paused")
	require.Contains(t, faults.String(), "to continue: redrive runs resume night")
}

// A message that is out of an interrupted run may have no consumer that reports, and no process counts its outcome
// until the run is resumed: watching the run waited for that without an end. The same holds for one that was cancelled.
func TestRuns_WatchEndsWhileMessagesAreOut(t *testing.T) {
	store, queue, letters := interruptible(t)
	common := []string{"--store", store, "--broker", "sqlite:" + queue}
	_, stderr, stop := start(t, append([]string{
		"dlq", "redrive", "--handler", "pay", "--rate", "0.02", "--yes", "--id", "slow",
	}, common...)...)
	runner, err := redrive.NewRunner(letters.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		run, err := runner.Run(t.Context(), "slow")
		return err == nil && run.Counts.Out > 0
	}, 2*time.Minute, 5*time.Millisecond, stderr)
	require.Equal(t, exitInterrupted, stop(), stderr)

	for _, tt := range []struct{ change, shows, next string }{
		{
			"", "run slow: paused (interrupted)\n0 of 5 done: 0 succeeded, 0 died again, 1 in flight, 4 waiting",
			"to continue: redrive runs resume slow",
		},
		{"cancel", "run slow: cancelled\n", "the run is cancelled"},
	} {
		var out, faults bytes.Buffer
		if tt.change != "" {
			require.Equal(t, exitOK, play1(t, append([]string{"runs", tt.change, "slow"}, common...), &out, &faults))
			out.Reset()
		}
		require.Equal(t, exitPartial, play1(t, append([]string{"runs", "watch", "slow"}, common...), &out, &faults))
		require.Contains(t, out.String(), tt.shows)
		require.Contains(t, faults.String(), tt.next)
	}
}

func play1(t *testing.T, args []string, out, faults *bytes.Buffer) int {
	t.Helper()
	return runContext(t.Context(), args, strings.NewReader(""), out, faults)
}

// Shells complete commands, topics, groups with their cause, ids with their error, and runs.
func TestCompletion(t *testing.T) {
	hermetic(t)
	store := filepath.Join(t.TempDir(), "dead.db")
	seed(t, store)
	t.Setenv("REDRIVE_STORE", store)
	for line, want := range map[string]string{
		"dlq re":                    "redrive\t",
		"dlq list --topic ":         "orders\ninvoices\n",
		"dlq list --fingerprint ":   "bank: timeout after ?",
		"dlq list --status ":        "any\npending\n",
		"dlq show ":                 "4\tinvoices: bank: timeout after 30s",
		"dlq list --output ":        "table\nwide\njson\n",
		"dlq redrive --reason ":     "exhausted\n",
		"explain --preset ":         "laravel\ndelayed-backoff\nstore-only\nservice-bus\nttl-cycle\n",
		"dlq restore ":              ":", // nothing to restore: only the directive
		"completion ":               "bash\t",
		"dlq list --config x --to ": ":",
	} {
		t.Run(line, func(t *testing.T) {
			args := append([]string{"__complete"}, strings.Split(line, " ")...)
			var out, faults bytes.Buffer
			require.Equal(t, exitOK, play1(t, args, &out, &faults), faults.String())
			require.Contains(t, out.String(), want)
		})
	}
	letters, err := dlq.Open(t.Context(), "sqlite:"+store, dlq.WithoutSpool())
	require.NoError(t, err)
	_, err = letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
		Message: message.NewMessage("evil", nil), Origin: envelope.Origin{Topic: "evil\x1b]0;title\a"}, At: time.Now(),
		Reason: envelope.ReasonMalformed,
	}))
	require.NoError(t, err)
	require.NoError(t, letters.Close())
	var out, faults bytes.Buffer
	require.Equal(t, exitOK, play1(t, []string{"__complete", "dlq", "list", "--topic", ""}, &out, &faults))
	require.NotContains(t, out.String(), "\x1b", "what a message says controls no terminal")
	require.Contains(t, out.String(), "evil")
	out.Reset()
	require.Equal(t, exitOK, play1(t, []string{"completion", "bash"}, &out, &faults))
	require.Contains(t, out.String(), "complete")
}

// A closed pipe, as with head, is not a crash.
func TestOutput_Closed(t *testing.T) {
	hermetic(t)
	store := filepath.Join(t.TempDir(), "dead.db")
	seed(t, store)
	var faults bytes.Buffer
	require.Equal(t, exitError, runContext(context.Background(), []string{"dlq", "list", "--store", store},
		strings.NewReader(""), full{}, &faults))
	require.Contains(t, faults.String(), "no space left")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// 0 means that everything was done, or that a second person is to approve it: a run that someone else paused or
// cancelled has left the rest unsent.
func TestRuns_ExitCodes(t *testing.T) {
	for _, state := range redrive.States() {
		for _, failed := range []int64{0, 1} {
			want := exitPartial
			if state == redrive.AwaitingApproval || state == redrive.Completed && failed == 0 {
				want = exitOK
			}
			a := &app{out: io.Discard, err: io.Discard}
			a.flags.output = "table"
			run := &wire.Run{State: state, Counts: wire.RunCounts{Succeeded: 1, Failed: failed}}
			require.Equal(t, want, exitCode(t.Context(), a.finish(run)), "%s, %d failed", state, failed)
		}
	}
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

// Read reads.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Ctrl-C ends a command that waits for an answer.
func TestAsk_Interrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	a := &app{err: io.Discard, in: readerFunc(func([]byte) (int, error) {
		interrupt()
		<-t.Context().Done() // no key is pressed
		return 0, io.EOF
	})}
	require.ErrorIs(t, a.ask(ctx, "redrive 5 dead letters"), context.Canceled)
}
