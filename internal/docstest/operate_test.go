package docstest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
)

// The functions up to the tests are the snippets in README.md, docs/concepts.md and docs/operations.md.

// wire sets up a complete service: retries and dead letters through the pipeline, effects that happen once.
func wire(ctx context.Context, handle message.NoPublishHandlerFunc) (*message.Router, brokers.Broker, *dlq.Letters,
	error,
) {
	broker, err := brokers.Open(ctx, os.Getenv("BROKER_URL"))
	if err != nil {
		return nil, nil, nil, err
	}
	letters, err := dlq.Open(ctx, os.Getenv("DLQ_URL"))
	if err != nil {
		return nil, broker, nil, err
	}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: letters, // or broker, or both: middleware.Sinks{broker, letters}
		MaxAttempts: middleware.Retries(3),
		Backoff:     middleware.WithCap(middleware.FromOriginalDelay(time.Second), time.Minute),
		Rules:       []middleware.Rule{middleware.MatchError(errNoStock, middleware.KindPermanent, "sold out")},
	})
	if err != nil {
		return nil, broker, letters, err
	}
	guard, err := idempotency.New(idempotency.Config{Store: idempotency.NewMemory(), Consumer: "billing"})
	if err != nil {
		return nil, broker, letters, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, broker, letters, err
	}
	router.AddMiddleware(pipeline.Middleware, guard.Middleware) // the first one is the outermost
	router.AddConsumerHandler("billing", "orders",
		broker.Subscriber(brokers.WithGroup("billing"), brokers.WithConcurrency(8)), handle)
	return router, broker, letters, nil
}

// logged is a service whose logger is slog's.
func logged(out io.Writer, broker brokers.Broker) (*message.Router, error) {
	named := &slog.HandlerOptions{ReplaceAttr: envelope.LevelName} // CRITICAL, not ERROR+4
	logger := slog.New(slog.NewTextHandler(out, named))
	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker, Logger: logger})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(logger))
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(pipeline.Middleware)
	return router, nil
}

// adapted is one whose logger is Watermill's.
func adapted(ctx context.Context, adapter watermill.LoggerAdapter, url string) (brokers.Broker, error) {
	logger := envelope.SlogLogger(adapter)
	broker, err := brokers.Open(ctx, url, brokers.WithLogger(logger))
	return broker, err
}

// One logger serves Redrive and Watermill, whichever of the two a service has.
func TestOperate_OneLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		broker, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		router, err := logged(&out, broker)
		require.NoError(t, err)
		router.AddConsumerHandler("billing", "orders", broker.Subscriber(), func(*message.Message) error {
			return middleware.Permanent(errNoStock)
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, broker.Publisher().Publish("orders", message.NewMessage("1", nil)))
		require.NoError(t, errors.Join(router.Run(ctx), broker.Close()))
		synctest.Wait() // a goroutine of the router writes its last line after Run has returned
		require.Contains(t, out.String(), `level=CRITICAL msg="message dead-lettered"`)
		require.Contains(t, out.String(), "Router closed", "Watermill's own lines")
	})
	broker, err := adapted(t.Context(), watermill.NewCaptureLogger(), "mem://")
	require.NoError(t, err)
	require.NoError(t, broker.Close())
}

var errNoStock = errors.New("no stock")

// marks shows how a handler declares what an error means; rules classify an error without a mark.
func marks(kind string, err error) error {
	switch kind {
	case "wrong":
		return middleware.Permanent(err) // to the dead letters, at once
	case "glitch":
		return middleware.Retryable(err) // again after the backoff
	case "busy":
		return middleware.RetryAfter(err, 30*time.Second) // again after what the other side asks for
	case "done before":
		return middleware.Skip(err) // logged, counted, acked
	case "not now":
		return middleware.Defer(err, time.Minute) // later, and no attempt is counted
	}
	return err
}

// shift is an operator's morning: find what fails most, look at one entry, send it back, close the rest.
func shift(ctx context.Context, letters *dlq.Letters, broker brokers.Broker) error {
	manager := letters.Manager(broker)
	groups, err := manager.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending})
	if err != nil || len(groups) == 0 {
		return err
	}
	worst := dlq.Filter{Statuses: []dlq.Status{dlq.Pending}, Fingerprint: groups[0].Fingerprint}
	listing, err := manager.List(ctx, worst, dlq.Page{Limit: 100})
	if err != nil {
		return err
	}
	by := dlq.By{Actor: "ana", Note: "the bank is back"}
	for _, entry := range listing.Entries {
		if _, err := manager.Redrive(ctx, entry.ID, by); err != nil && !errors.Is(err, dlq.ErrConflict) {
			return err // a conflict means that someone else was faster
		}
	}
	return nil
}

// housekeeping removes entries that were resolved more than 90 days ago, after a copy to the archive.
func housekeeping(ctx context.Context, manager *dlq.Manager) (removed int, err error) {
	return manager.Purge(ctx, dlq.Purge{ClosedBefore: time.Now().AddDate(0, 0, -90), Actor: "nightly"})
}

// letGo closes entries by hand: it resolves what someone has done by hand, discards what no one will do, and restores.
func letGo(ctx context.Context, manager *dlq.Manager, id int64) error {
	by := dlq.By{Actor: "ana", Note: "refunded by hand"}
	if _, err := manager.Resolve(ctx, id, by); err != nil {
		return err
	}
	if _, err := manager.Restore(ctx, id, by); err != nil {
		return err
	}
	_, err := manager.Discard(ctx, id, by)
	return err
}

// redriveGroup sends a whole group back: one message first, then ten, then a hundred, at most 50 a second.
func redriveGroup(ctx context.Context, runner *redrive.Runner, fingerprint string) (*redrive.Run, error) {
	spec := redrive.Spec{
		Filter: dlq.Filter{Fingerprint: fingerprint},
		Canary: []int{1, 10, 100},
		Rate:   50,
		Stop:   redrive.StopCondition{Share: 0.1}, // of the outcomes
	}
	preview, err := runner.PreviewRun(ctx, spec, 10) // the dry run: how many, of which topics, the first ten
	if err != nil || preview.Count == 0 {
		return nil, err
	}
	run, err := runner.StartRun(ctx, spec, dlq.By{Actor: "ana", Note: "the bank is back"})
	if err != nil {
		return nil, err
	}
	return runner.Drive(ctx, run.ID) // or runner.Work in some process: any process may drive it
}

// correct changes a payload and sends the message back; the original is kept as a revision.
func correct(ctx context.Context, manager *dlq.Manager, id int64, payload []byte) error {
	edit := dlq.Edit{Payload: payload}
	if _, err := manager.PreviewEdit(ctx, id, edit); err != nil { // the difference, for people
		return err
	}
	_, err := manager.EditAndRedrive(ctx, id, edit, dlq.By{Actor: "ana", Note: "wrong account"})
	return err
}

// A group of 30 is redriven in steps and processed; another entry is corrected and redriven.
func TestOperate_RunAndCorrection(t *testing.T) {
	t.Setenv("BROKER_URL", "mem://")
	t.Setenv("DLQ_URL", "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal")
	bankIsBack := make(chan struct{})
	router, broker, letters, err := wire(t.Context(), func(m *message.Message) error {
		select {
		case <-bankIsBack:
			if string(m.Payload) == "0" {
				return middleware.Permanent(errors.New("bank: there is no account 0"))
			}
			return nil
		default:
			return middleware.Permanent(errors.New("bank: account " + string(m.Payload) + " is not answering"))
		}
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	for account := range 30 {
		m := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(4711+account)))
		require.NoError(t, broker.Publisher().Publish("orders", m))
	}
	manager := letters.Manager(broker)
	reaches := func(want driver.Counts) {
		t.Helper()
		require.Eventually(t, func() bool {
			stats, err := manager.Stats(t.Context(), dlq.StatsQuery{})
			return err == nil && stats.Counts == want
		}, 2*time.Minute, 5*time.Millisecond)
	}
	reaches(driver.Counts{Pending: 30})
	groups, err := manager.Groups(t.Context(), dlq.GroupQuery{})
	require.NoError(t, err)
	require.Len(t, groups, 1)

	close(bankIsBack)
	runner, err := redrive.NewRunner(letters.Manager(broker), redrive.Config{})
	require.NoError(t, err)
	run, err := redriveGroup(t.Context(), runner, groups[0].Fingerprint)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State)
	require.EqualValues(t, 30, run.Counts.Succeeded)
	reaches(driver.Counts{Resolved: 30})

	require.NoError(t, broker.Publisher().Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("0"))))
	reaches(driver.Counts{Pending: 1, Resolved: 30})
	listing, err := manager.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.Page{})
	require.NoError(t, err)
	require.NoError(t, correct(t.Context(), manager, listing.Entries[0].ID, []byte("4741")))
	reaches(driver.Counts{Resolved: 31})

	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, broker.Close())
	require.NoError(t, letters.Close())
}

// Two orders are dead-lettered while a bank is down. When it is back, an operator redrives them, and what is closed can
// be purged.
func TestOperate_AShift(t *testing.T) {
	t.Setenv("BROKER_URL", "mem://")
	t.Setenv("DLQ_URL", "sqlite:"+filepath.Join(t.TempDir(), "dead.db"))

	bankIsBack := make(chan struct{})
	router, broker, letters, err := wire(t.Context(), func(m *message.Message) error {
		select {
		case <-bankIsBack:
			return nil
		default:
			return middleware.Permanent(errors.New("bank: account " + string(m.Payload) + " is not answering"))
		}
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(t.Context()) }()
	<-router.Running()
	for _, account := range []string{"4711", "4712"} {
		require.NoError(t, broker.Publisher().Publish("orders", message.NewMessage(watermill.NewUUID(), []byte(account))))
	}
	manager := letters.Manager(nil)
	counts := func() driver.Counts {
		stats, err := manager.Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		return stats.Counts
	}
	require.Eventually(t, func() bool { return counts() == driver.Counts{Pending: 2} }, 2*time.Minute, 5*time.Millisecond)
	groups, err := manager.Groups(t.Context(), dlq.GroupQuery{})
	require.NoError(t, err)
	require.Len(t, groups, 1, "two accounts, one cause")

	close(bankIsBack)
	require.NoError(t, shift(t.Context(), letters, broker))
	require.Eventually(t, func() bool { return counts() == driver.Counts{Resolved: 2} }, 2*time.Minute, 5*time.Millisecond)
	removed, err := housekeeping(t.Context(), manager)
	require.NoError(t, err)
	require.Zero(t, removed, "nothing is that old")

	_, err = manager.Restore(t.Context(), groups[0].LastEntry, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.NoError(t, letGo(t.Context(), manager, groups[0].LastEntry))
	require.Equal(t, driver.Counts{Resolved: 1, Discarded: 1}, counts())
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.NoError(t, broker.Close())
	require.NoError(t, letters.Close())
}

// The marks have their documented effects.
func TestOperate_Marks(t *testing.T) {
	classifier, err := middleware.NewClassifier()
	require.NoError(t, err)
	cause := errors.New("x")
	for kind, want := range map[string]middleware.Kind{
		"wrong": middleware.KindPermanent, "glitch": middleware.KindRetryable, "busy": middleware.KindRetryable,
		"done before": middleware.KindSkip, "not now": middleware.KindDefer, "": middleware.KindUnknown,
	} {
		marked := marks(kind, cause)
		require.ErrorIs(t, marked, cause)
		require.Equal(t, want, classifier.Classify(marked).Kind, kind)
	}
	require.Equal(t, 30*time.Second, classifier.Classify(marks("busy", cause)).After)
}

// The default backoff and limit, as docs/concepts.md states them.
func TestOperate_DefaultTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := func(ctx context.Context, url string) (brokers.Broker, *middleware.Pipeline, error) {
			broker, err := brokers.Open(ctx, url)
			if err != nil {
				return nil, nil, err
			}
			pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker})
			return broker, pipeline, err
		}
		attempts, broker := run(t, wire, "orders", func(p message.Publisher) error {
			return p.Publish("orders", message.NewMessage("1", nil))
		})
		require.Equal(t, seconds(0, 1, 3, 7), attempts)
		require.Len(t, broker.Peek("orders_dlq", ""), 1)
		require.Equal(t, string(envelope.ReasonExhausted),
			broker.Peek("orders_dlq", "")[0].Metadata[envelope.KeyDeadLetterReason])
	})
}
