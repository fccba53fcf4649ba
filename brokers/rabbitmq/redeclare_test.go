package rabbitmq

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
)

// A consumer that the broker sends nothing is replaced by the check after the one that noticed it, two seconds later.
// One that is idle, busy, or making progress is left alone, except where RabbitMQ hides what it discards.
func TestStream_ThatTheBrokerForgotIsReplaced(t *testing.T) {
	empty, full := amqp.Queue{Consumers: 1}, amqp.Queue{Consumers: 1, Messages: 5}
	const quiet = 100 * time.Second // of checks that end nothing
	for name, tc := range map[string]struct {
		version  string
		queue    amqp.Queue
		received int64           // and unanswered
		between  func(s *stream) // after each check
		want     error
		after    time.Duration
	}{
		"has no consumer":          {queue: amqp.Queue{}, want: errForgotten, after: checkEvery},
		"starves":                  {queue: full, want: driver.ErrRenew, after: checkEvery + recheckAfter},
		"is idle":                  {queue: empty, after: quiet},
		"is idle on RabbitMQ 3":    {version: "3.10.8", queue: empty, want: driver.ErrRenew, after: 2 * checkEvery},
		"is busy":                  {queue: full, received: 1, after: quiet},
		"is busy on RabbitMQ 3":    {version: "3.10.8", queue: full, received: 1, after: quiet},
		"was between two messages": {queue: full, between: delivers, after: quiet},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), quiet)
				defer cancel()
				s := &stream{
					transport: &transport{},
					conn:      &amqp.Connection{Properties: amqp.Table{"version": tc.version}},
					acks:      newAcker(nil), idleSince: time.Now(), over: make(chan struct{}),
				}
				s.received.Store(tc.received)
				began := time.Now()
				checkRegularly(ctx, func() bool {
					s.check(&tc.queue)
					if tc.between != nil {
						tc.between(s)
					}
					select {
					case <-s.over:
						cancel()
					default:
					}
					return s.starving
				})
				require.ErrorIs(t, s.cause, tc.want)
				require.Equal(t, tc.after, time.Since(began))
			})
		})
	}
}

// delivers lets a message arrive and be answered.
func delivers(s *stream) {
	s.received.Add(1)
	s.acks.answers++
}
