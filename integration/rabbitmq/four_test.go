package rabbitmq_test

import (
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// The conformance suite also runs on RabbitMQ 4; the other tests run on 3.10. Version 4 rejects transient queues that
// are not exclusive and QoS for a whole connection, and counts deliveries differently.
func TestConformance_RabbitMQ4(t *testing.T) { conforms(t, services.SharedRabbitMQ4(t), nil) }

// This is why there is no transport=native: the delayed retry of RabbitMQ 4.3's quorum queues has a delay per queue and
// redelivers the same message. A nack in AMQP 0-9-1 cannot specify a delay or change headers, so attempt and error
// would be lost with the process.
func TestNative_DelayedRetryLosesTheHeaders(t *testing.T) {
	t.Parallel()
	const first = 300 * time.Millisecond
	p := dialPlain(t, services.SharedRabbitMQ4(t).VHost(t))
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-delayed-retry-type": "all",
		"x-delayed-retry-min": first.Milliseconds(), "x-delayed-retry-max": time.Minute.Milliseconds(),
	})
	require.NoError(t, err)
	deliveries, err := p.ch.Consume("orders", "", false, false, false, false, nil)
	require.NoError(t, err)
	p.send("", "orders", amqp.Publishing{MessageId: "1", Headers: amqp.Table{"x-retry-count": int32(0)}})
	d := <-deliveries
	for n := 1; n <= 3; n++ {
		began := time.Now()
		require.NoError(t, d.Nack(false, true))
		d = <-deliveries
		took := time.Since(began)
		t.Logf("delivery %d after %s: %v", n+1, took.Round(time.Millisecond), d.Headers)
		require.GreaterOrEqual(t, took, first-10*time.Millisecond, "the delay of the queue")
		require.Equal(t, int32(0), d.Headers["x-retry-count"])
		require.EqualValues(t, n, d.Headers["x-acquired-count"])
	}
	require.NoError(t, d.Ack(false))
}
