package rabbitmq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// patience bounds the wait for anything that must happen.
const patience = 30 * time.Second

// plain is a client that knows nothing of Redrive: what it reads is what is on the wire.
type plain struct {
	t  *testing.T
	ch *amqp.Channel
}

func dialPlain(t *testing.T, url string) *plain {
	t.Helper()
	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return &plain{t: t, ch: ch}
}

// next takes one message out of queue, waiting for it.
func (p *plain) next(queue string) amqp.Delivery {
	p.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		d, ok, err := p.ch.Get(queue, true)
		require.NoError(p.t, err)
		if ok {
			return d
		}
		require.True(p.t, time.Now().Before(deadline), "nothing came into %s", queue)
		<-time.After(5 * time.Millisecond)
	}
}

// depth is the number of ready messages in queue.
func (p *plain) depth(queue string) int {
	p.t.Helper()
	q, err := p.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	return q.Messages
}

// consumers is the number of consumers of queue.
func (p *plain) consumers(queue string) int {
	p.t.Helper()
	q, err := p.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(p.t, err)
	return q.Consumers
}

// send publishes like a foreign producer and waits for nothing.
func (p *plain) send(exchange, key string, msg amqp.Publishing) {
	p.t.Helper()
	require.NoError(p.t, p.ch.PublishWithContext(p.t.Context(), exchange, key, true, false, msg))
}

// readPlain takes up to n messages out of queue as Watermill messages with their string headers.
func readPlain(t *testing.T, url, queue string, n int) []*message.Message {
	t.Helper()
	p := dialPlain(t, url)
	var out []*message.Message
	deadline := time.Now().Add(patience)
	for len(out) < n && time.Now().Before(deadline) {
		d, ok, err := p.ch.Get(queue, true)
		require.NoError(t, err)
		if !ok {
			<-time.After(10 * time.Millisecond)
			continue
		}
		m := message.NewMessage(d.MessageId, d.Body)
		for key, value := range d.Headers {
			m.Metadata[key] = fmt.Sprint(value)
		}
		out = append(out, m)
	}
	return out
}
