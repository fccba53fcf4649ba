package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/middleware"
)

const (
	topic       = "chaos"
	deadTopic   = "chaos_dlq"
	concurrency = 8

	workerURL    = "REDRIVE_CHAOS_URL"
	workerLedger = "REDRIVE_CHAOS_LEDGER"
)

var errNotNow = errors.New("not now")

func config(url string) brokers.Config {
	return brokers.Config{
		URL: url, Group: "chaos", Naming: brokers.Laravel(), Concurrency: concurrency, Delays: []time.Duration{backoff},
		DrainTimeout: 5 * time.Second, PublishTimeout: 5 * time.Second, Logger: logger(),
	}
}

// worker is the service: it handles messages until it is stopped or killed.
func worker(url, path string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := work(ctx, url, path); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

// work runs the service as a supervisor would: if it cannot start because the broker is down, it is restarted. Once
// started it keeps running, whatever happens to the broker.
func work(ctx context.Context, url, path string) error {
	book, err := openBook(path)
	if err != nil {
		return err
	}
	for {
		started, err := serve(ctx, url, book)
		if started || err == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was stopped before it started
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// serve handles messages until ctx ends. It reports whether it had subscribed.
func serve(ctx context.Context, url string, book *book) (started bool, err error) {
	broker, err := brokers.OpenConfig(ctx, config(url))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, MaxAttempts: attempts, Backoff: middleware.Constant(backoff),
		Logger: logger(),
	})
	if err != nil {
		return true, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return true, err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("chaos", topic, broker.Subscriber(),
		func(m *message.Message) error { return handle(book, m) })
	if err = router.Run(ctx); ctx.Err() != nil {
		err = nil // a router that is stopped while it subscribes returns an error
	}
	return router.IsRunning(), err
}

// handle follows the message's plan, and logs each step before it takes effect.
func handle(book *book, m *message.Message) error {
	var p plan
	if err := json.Unmarshal(m.Payload, &p); err != nil {
		return middleware.Permanent(err)
	}
	attempt, _ := middleware.AttemptFrom(m.Context())
	book.write(begun, p.ID, attempt.Number)
	switch {
	case p.Kind == refused:
		return middleware.Permanent(errors.New("refused"))
	case p.Kind == hopeless, p.Kind == flaky && attempt.Number < attempts:
		book.write(failed, p.ID, attempt.Number)
		return errNotNow
	case p.Kind == slow:
		wait(m.Context(), slowness)
	}
	book.write(handled, p.ID, attempt.Number)
	return nil
}

// process is a running worker.
type process struct {
	cmd   *exec.Cmd
	asked atomic.Bool // asked to stop
	ended chan struct{}
}

func startWorker(t *testing.T, url, path string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerURL+"="+url, workerLedger+"="+path, "GORACE=halt_on_error=1")
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	p := &process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		if err := cmd.Wait(); !p.asked.Load() {
			t.Errorf("a worker ended on its own: %v", err)
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9.
func (p *process) kill() { p.end(syscall.SIGKILL) }

// stop stops the worker like a deployment.
func (p *process) stop() { p.end(syscall.SIGTERM) }

func (p *process) end(signal os.Signal) {
	p.asked.Store(true)
	_ = p.cmd.Process.Signal(signal) // it may have ended already
	<-p.ended
}

func (p *process) pause()  { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// logger logs what workers and publisher do, shown with -v, if REDRIVE_CHAOS_LOG is set.
func logger() *slog.Logger {
	if os.Getenv("REDRIVE_CHAOS_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
