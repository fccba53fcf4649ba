package rabbitmq_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// If the broker is killed with SIGKILL while 10,000 messages are in delay queues, half of them retries and half first
// deliveries, in queues of a named delay and on the grid, all are delivered and none is early.
func TestKill_With10000MessagesInDelayQueues(t *testing.T) {
	t.Parallel()
	const n = 10_000
	r := services.RabbitMQ(t, services.RabbitConfig{DeadLetterConfirmTimeout: 2 * time.Second})
	open := func(named ...time.Duration) *rabbitmq.Broker {
		return openBroker(t, r.URL, delays(named...), params("prefetch", "250"), func(c *brokers.Config) {
			c.Concurrency = 128
			c.PublishTimeout = patience
		})
	}
	isRetry := func(i int) bool { return i%4 < 2 }
	var named time.Duration
	delayOf := func(i int) time.Duration {
		if i%2 == 0 {
			return named
		}
		return named + 345*time.Millisecond // on the grid
	}
	failed, came := newLedger(), newLedger()
	due := make([]time.Time, n) // written before the message is published or rescheduled
	early := make(chan int, n)
	consume := func(b brokers.Broker) *service {
		return serve(t, b, "orders", middleware.Config{MaxAttempts: 5}, func(m *message.Message) error {
			i, err := strconv.Atoi(m.UUID)
			if err != nil {
				return middleware.Permanent(err)
			}
			a, _ := middleware.AttemptFrom(m.Context())
			if isRetry(i) && a.Number == 1 {
				if failed.note(m.UUID) == 1 {
					due[i] = time.Now().Add(delayOf(i))
				}
				return middleware.RetryAfter(errDown, delayOf(i))
			}
			if time.Now().Before(due[i]) {
				early <- i
			}
			came.note(m.UUID)
			return nil
		})
	}
	var first, retries []*message.Message
	for i := range n {
		if isRetry(i) {
			retries = append(retries, message.NewMessage(strconv.Itoa(i), []byte("x")))
		}
	}
	producer := open()
	require.NoError(t, producer.Apply(t.Context(), producer.Plan("orders")))
	began := time.Now()
	require.NoError(t, producer.Publisher().Publish("orders", retries...))
	// long enough for this machine to fail and store them
	named = max(30*time.Second, 10*time.Since(began).Round(time.Second))
	b := open(named)
	s := consume(b)
	failed.wait(t, n/2)
	s.stop()                // once the service has stopped, every retry is confirmed
	over, _ := came.count() // on a busy machine, the first retries may be due before the last ones are stored
	require.Less(t, over, n/4, "too few messages still wait: the delay is too short for this machine")
	for i := range n {
		if !isRetry(i) {
			m := message.NewMessage(strconv.Itoa(i), []byte("x"))
			envelope.SetDelay(m, delayOf(i))
			due[i] = time.Now().Add(delayOf(i))
			first = append(first, m)
		}
	}
	require.NoError(t, b.Publisher().Publish("orders", first...)) // without a consumer

	require.NoError(t, r.Settle(t.Context()))
	require.NoError(t, r.Kill())
	require.NoError(t, r.Start(t.Context()))
	consume(open(named))
	came.wait(t, n)
	came.requireExactly(t, n, func(int) bool { return true })
	require.Empty(t, early, "messages were delivered before they were due")
	_, again := came.count()
	t.Logf("%d messages in delay queues, broker killed: %d lost, %d twice", n, 0, again)
}
