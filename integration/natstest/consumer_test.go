package natstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/kill9"
	"github.com/redrive-go/redrive/middleware"
)

const (
	consumerURL = "REDRIVE_NATSTEST_URL"
	topicOrders = "orders"
	// The points at which a consumer dies; see kill9.
	diesInHandler    = "in the handler"
	diesAfterHandler = "after the handler, before the ack"
	diesAfterRetry   = "after the retry was published, before the ack"
	killer           = "killer"
)

var errFirst = errors.New("fails the first time")

// consumerMain is a consumer in a process that tests kill. It prints a line for each message that it handles. SIGTERM
// shuts it down cleanly.
func consumerMain(url string) int {
	b, err := opened(context.Background(), url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() { <-end; cancel() }()
	if err := consume(ctx, b, dying{b}, func(m *message.Message) error {
		if m.UUID == killer {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		kill9.At(diesInHandler)
		if err := failsFirst(m); err != nil {
			return err
		}
		fmt.Println(string(m.Payload))
		kill9.At(diesAfterHandler)
		return nil
	}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// dying kills its process after a retry was published.
type dying struct{ brokers.Broker }

func (d dying) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	err := d.Broker.Reschedule(ctx, origin, m, delay)
	kill9.At(diesAfterRetry)
	return err
}

// failsFirst fails every tenth message once.
func failsFirst(m *message.Message) error {
	n, err := strconv.Atoi(string(m.Payload))
	if a, ok := middleware.AttemptFrom(m.Context()); err == nil && ok && n%10 == 3 && a.Number == 1 {
		return errFirst
	}
	return nil
}

// consume runs a router with one handler and a pipeline until ctx ends, and closes the broker.
func consume(ctx context.Context, b brokers.Broker, r middleware.Rescheduler,
	handle func(*message.Message) error,
) error {
	router, err := route(b, r, handle)
	if err != nil {
		return err
	}
	return errors.Join(router.Run(ctx), b.Close())
}

// route returns the router of one handler with a pipeline.
func route(b brokers.Broker, r middleware.Rescheduler, handle func(*message.Message) error) (*message.Router, error) {
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: r, DeadLetters: b, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 3, Backoff: middleware.Constant(500 * time.Millisecond),
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("consumer", topicOrders, b.Subscriber(), handle)
	return router, nil
}

// ledger counts how often each message was handled successfully.
type ledger struct {
	mu    sync.Mutex
	times map[string]int
	total int
}

func newLedger() *ledger { return &ledger{times: map[string]int{}} }

func (l *ledger) handled(payload string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times[payload]++
	l.total++
}

func (l *ledger) counts() (different, total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.times), l.total
}

// wait waits until n different messages were handled.
func (l *ledger) wait(t *testing.T, different int) {
	t.Helper()
	await.Count(t, different, func() int { have, _ := l.counts(); return have }, "messages are missing")
}

// opened opens a broker on a server that may be slow: without a deadline the client waits only 2 s.
func opened(ctx context.Context, url string) (brokers.Broker, error) {
	ctx, cancel := context.WithTimeout(ctx, await.Patience/4)
	defer cancel()
	return brokers.Open(ctx, url)
}

// open opens a broker whose publish timeout is long enough for a busy machine.
func open(t testing.TB, url string, params ...string) brokers.Broker {
	t.Helper()
	b, err := opened(t.Context(), with(url, append(params, "publish-timeout="+await.Patience.String())...))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// with adds parameters to a URL.
func with(url string, params ...string) string {
	if len(params) == 0 {
		return url
	}
	return url + "?" + strings.Join(params, "&")
}

// serve runs a consumer in this process, which ends with the test.
func serve(t *testing.T, url string, handle func(*message.Message) error, params ...string) (stop func()) {
	t.Helper()
	b, err := opened(t.Context(), with(url, params...))
	require.NoError(t, err)
	router, err := route(b, b, handle)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := await.Run(ctx, t, router)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ended, b.Close()); err != nil {
			t.Error(err) // FailNow in a OnceFunc would panic, and end the other tests
		}
	})
	t.Cleanup(stop)
	return stop
}

// recording handles messages of which every tenth fails the first time.
func recording(l *ledger) func(*message.Message) error {
	return func(m *message.Message) error {
		if err := failsFirst(m); err != nil {
			return err
		}
		l.handled(string(m.Payload))
		return nil
	}
}

// numbers returns messages first to last-1.
func numbers(first, last int) []*message.Message {
	var batch []*message.Message
	for i := first; i < last; i++ {
		batch = append(batch, message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i))))
	}
	return batch
}

// publishUntil publishes until the message is stored.
func publishUntil(t *testing.T, b brokers.Broker, m *message.Message) {
	t.Helper()
	await.True(t, func() bool { return b.Publisher().Publish(topicOrders, m) == nil })
}

// startConsumer starts a consumer process that dies at that point, or when it is killed.
func startConsumer(t *testing.T, url, dies string, l *ledger) *exec.Cmd {
	t.Helper()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd := kill9.Command(t, dies, consumerURL+"="+url)
	cmd.Stdout = write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	go func() {
		defer read.Close()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			l.handled(strings.TrimSpace(lines.Text()))
		}
	}()
	return cmd
}
