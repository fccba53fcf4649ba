package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
)

// patience is how long tests wait for something that must happen.
const patience = await.Patience

// plain is a client without Redrive.
type plain struct {
	t  *testing.T
	ch *amqp.Channel
}

func dialPlain(t *testing.T, url string) *plain {
	t.Helper()
	// RabbitMQ closes a connection on which nothing arrived for twice that time, which may happen on a busy machine.
	conn, err := amqp.DialConfig(url, amqp.Config{Heartbeat: time.Minute, Locale: "en_US"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return &plain{t: t, ch: ch}
}

// next waits for a message in queue and removes it.
func (p *plain) next(queue string) amqp.Delivery {
	p.t.Helper()
	var d amqp.Delivery
	await.True(p.t, func() (ok bool) {
		var err error
		d, ok, err = p.ch.Get(queue, true)
		require.NoError(p.t, err)
		return ok
	}, "no message in %s", queue)
	return d
}

// refuse nacks the next message in queue.
func (p *plain) refuse(queue string, requeue bool) {
	p.t.Helper()
	await.True(p.t, func() bool {
		d, ok, err := p.ch.Get(queue, false)
		return err == nil && ok && d.Nack(false, requeue) == nil
	})
}

// depth returns the number of ready messages in queue.
func (p *plain) depth(queue string) int {
	p.t.Helper()
	q, err := p.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	return q.Messages
}

// consumers returns the number of consumers of queue.
func (p *plain) consumers(queue string) int {
	p.t.Helper()
	q, err := p.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	return q.Consumers
}

// send publishes like a foreign producer, without waiting.
func (p *plain) send(exchange, key string, msg amqp.Publishing) {
	p.t.Helper()
	require.NoError(p.t, p.ch.PublishWithContext(p.t.Context(), exchange, key, true, false, msg))
}

// readPlain removes up to n messages from queue, and returns them as Watermill messages with their string headers.
func readPlain(t *testing.T, url, queue string, n int) []*message.Message {
	t.Helper()
	p := dialPlain(t, url)
	var out []*message.Message
	for len(out) < n {
		d := p.next(queue)
		m := message.NewMessage(d.MessageId, d.Body)
		for key, value := range d.Headers {
			m.Metadata[key] = fmt.Sprint(value)
		}
		out = append(out, m)
	}
	return out
}
