package rabbitmq_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/services"
)

// restartAddress is set in the process that Watermill's suite starts to restart the broker. At this URL, the test's
// process, which owns the broker, restarts it.
const restartAddress = "REDRIVE_TEST_RESTART"

// restart asks the test's process for a restart, and waits for it.
func restart(url string) int {
	resp, err := http.Post(url, "text/plain", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, resp.Status, err)
		return 1
	}
	return 0
}

// TestReconnect is Watermill's own reconnect test: 10,000 messages from 100 publishers, while the broker is killed
// twice. That test has a race: it compares when the last message is received, which may be before the publisher has
// recorded it. So the last message is delayed here; and because the race detector would still report the test, it runs
// in a process without the detector, since an ignored report does not make it faster. The suite's deadline is a minute,
// in which a busy machine restarts no broker twice; Watermill's build tag for slow tests makes it five.
func TestReconnect(t *testing.T) {
	t.Parallel()
	if raceEnabled {
		out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-tags=stress", "-run=^TestReconnect$",
			".").CombinedOutput()
		require.NoError(t, err, string(out))
		return
	}
	r := services.RabbitMQ(t, services.RabbitConfig{DeadLetterConfirmTimeout: 2 * time.Second})
	var one sync.Mutex // the suite starts the second restart without waiting for the first
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		one.Lock()
		defer one.Unlock()
		for _, step := range []func() error{
			func() error { return r.Settle(req.Context()) },
			r.Kill,
			func() error { return r.Start(req.Context()) },
		} {
			if err := step(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
	}))
	t.Cleanup(server.Close)

	features := tests.Features{
		Persistent:            true,
		RestartServiceCommand: []string{"/usr/bin/env", restartAddress + "=" + server.URL, os.Args[0]},
	}
	tests.TestReconnect(t, tests.TestContext{TestID: tests.NewTestID(), Features: features},
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			b := openBroker(t, r.URL, func(c *brokers.Config) {
				c.Logger = slog.New(slog.DiscardHandler)
				c.DrainTimeout = time.Second
				c.Params = brokers.Params{"prefetch": "100"}
			})
			return b.Publisher(), &lastHeldBack{Subscriber: b.Subscriber()}
		})
}

// lastHeldBack delivers the 10,000th message a second late.
type lastHeldBack struct{ message.Subscriber }

func (s *lastHeldBack) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		seen := map[string]struct{}{}
		for m := range in {
			if seen[m.UUID] = struct{}{}; len(seen) == 10_000 {
				<-time.After(time.Second) // real time: the delay of the last message
			}
			select {
			case out <- m:
			case <-m.Context().Done():
			}
		}
	}()
	return out, nil
}

func (s *lastHeldBack) SubscribeInitialize(topic string) error {
	return s.Subscriber.(message.SubscribeInitializer).SubscribeInitialize(topic)
}
