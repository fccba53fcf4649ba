package memory

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

type publisher struct {
	broker *Broker
	once   sync.Once
	closed chan struct{}
}

// Publish stores all messages or, when one of them is too large or the publisher is closed, none.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	select {
	case <-p.closed:
		return fmt.Errorf("memory: publish to %s: %w", topic, brokers.ErrClosed)
	default:
	}
	items := make([]*item, 0, len(messages))
	now := time.Now()
	for _, m := range messages {
		if err := p.broker.accept(m); err != nil {
			return fmt.Errorf("memory: publish to %s: %w", topic, err)
		}
		m = m.Copy() // TakeDelay changes the headers, and m is the caller's
		delay, _ := envelope.TakeDelay(m)
		it := newItem(m, topic, now)
		if delay > 0 {
			it.due = now.Add(delay)
		}
		items = append(items, it)
	}
	if len(items) > 0 {
		p.broker.store.publish(topic, items)
	}
	return nil
}

// Close closes this handle only.
func (p *publisher) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
