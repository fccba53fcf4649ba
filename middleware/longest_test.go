package middleware_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// A delay that only the handler, a header or a random backoff knows cannot be checked at start. If the broker refused
// it, the message would be nacked and run again at once without an attempt being counted, without end.
func TestPipeline_DelayBeyondTheLongest(t *testing.T) {
	const longest, held = time.Hour, 10 * time.Minute
	retryAfter, deferred := middleware.RetryAfter(errTimeout, 3*longest), middleware.Defer(errTimeout, 3*longest)
	for name, test := range map[string]struct {
		able  time.Duration // the broker's longest delay; -1 if it cannot delay
		err   error
		delay time.Duration // x-original-delay
		cfg   middleware.Config
		runs  []time.Duration
	}{
		"RetryAfter": {longest, retryAfter, 0, middleware.Config{MaxAttempts: 3}, []time.Duration{0, longest, 2 * longest}},
		"x-original-delay": {
			longest, errTimeout, 2 * longest,
			middleware.Config{MaxAttempts: 3, Backoff: middleware.FromOriginalDelay(time.Second)},
			[]time.Duration{0, longest, 2 * longest},
		},
		"Defer": {
			longest, deferred, 0,
			middleware.Config{MaxDeferAge: 5 * longest / 2},
			[]time.Duration{0, longest, 2 * longest, 3 * longest},
		},
		"RetryAfter, no delays": {
			-1, retryAfter, 0,
			middleware.Config{MaxAttempts: 3, Backoff: middleware.None()},
			[]time.Duration{0, held, 2 * held},
		},
		"Defer, no delays": {
			-1, deferred, 0,
			middleware.Config{MaxAttempts: 1, MaxDeferAge: 7 * held / 2},
			[]time.Duration{0, held, 2 * held, 3 * held, 4 * held},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := drivertest.NewServer(drivertest.Config{Capabilities: brokers.Capabilities{MaxDelay: test.able}})
				cfg, err := brokers.Config{URL: "faulty://", Group: "billing", Logger: quiet}.Resolve(nil)
				require.NoError(t, err)
				broker, err := portable.New(portable.Config{Config: cfg, Transport: server.Connect()})
				require.NoError(t, err)
				defer broker.Close()
				test.cfg.Rescheduler = broker
				s := newHarness(t, test.cfg, failing(test.err))

				in, err := broker.Subscriber().Subscribe(t.Context(), "orders")
				require.NoError(t, err)
				m := order(t)
				if test.delay > 0 {
					m.Metadata[envelope.KeyOriginalDelay] = strconv.FormatInt(test.delay.Milliseconds(), 10)
				}
				require.NoError(t, broker.Publisher().Publish("orders", m))
				s.start = time.Now()
				for len(s.ran()) < len(test.runs) {
					m := <-in
					if _, err := s.handler(m); err != nil {
						m.Nack()
						continue
					}
					m.Ack()
				}
				runs := s.ran()
				for i := range runs {
					runs[i] = runs[i].Round(time.Minute)
				}
				require.Equal(t, test.runs, runs[:min(len(runs), 5)])
				require.Equal(t, m.Metadata[envelope.KeyMessageID], envelope.Identify(s.letter().Message))
			})
		})
	}
}
