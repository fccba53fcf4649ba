package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// publisher is a handle on the broker's confirmed publishing. It is safe for concurrent use.
type publisher struct {
	broker *Broker
	closed atomic.Bool
}

var _ message.Publisher = (*publisher)(nil)

// Publish implements message.Publisher. All messages of one call are under way together, and it returns when the last
// of them is confirmed. The context of the first message bounds the wait for all.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if p.closed.Load() {
		return fmt.Errorf("rabbitmq: publish to %s: %w", topic, brokers.ErrClosed)
	}
	if len(messages) == 0 {
		return nil
	}
	b := p.broker
	batch := make([]outgoing, len(messages))
	anyDelay := false
	for i, m := range messages {
		o, delay, err := b.first(topic, m)
		if err != nil {
			return fmt.Errorf("rabbitmq: publish to %s: %w", topic, err)
		}
		batch[i] = o
		anyDelay = anyDelay || delay > 0
	}
	ctx := messages[0].Context()
	if !anyDelay {
		return b.sender.send(ctx, batch...)
	}

	if err := b.prepareDelays(ctx, topic); err != nil {
		return err
	}
	err := b.sender.send(ctx, batch...)
	if errors.Is(err, brokers.ErrUnroutable) { // somebody deleted a delay queue: the next call makes it again
		b.declared.Delete(topic)
	}
	return err
}

// Close implements message.Publisher. It ends this handle and nothing else.
func (p *publisher) Close() error {
	p.closed.Store(true)
	return nil
}

// first makes the first publication of m to topic, and says for how long it is to be delayed.
func (b *Broker) first(topic string, m *message.Message) (outgoing, time.Duration, error) {
	if err := b.checkPayload(m); err != nil {
		return outgoing{}, 0, err
	}
	var delay time.Duration
	if asksDelay(m) {
		m = m.Copy() // the request is taken out of the copy
		delay, _ = envelope.TakeDelay(m)
	}
	if delay <= 0 {
		return b.outgoing(m, route{exchange: b.design.exchangeFor(topic), key: topic}, time.Time{}), 0, nil
	}
	r, err := b.design.delayed(topic, delay)
	if err != nil {
		return outgoing{}, 0, err
	}
	return b.outgoing(m, r, time.Now().Add(delay)), delay, nil
}

func asksDelay(m *message.Message) bool {
	md := m.Metadata
	return md[envelope.KeyDelay] != "" || md[envelope.KeyWatermillDelayedFor] != "" || md[envelope.KeyWatermillDelayedUntil] != ""
}

// prepareDelays declares the queues in which messages wait for their first delivery to topic, once per process.
func (b *Broker) prepareDelays(ctx context.Context, topic string) error {
	if _, done := b.declared.Load(topic); done {
		return nil
	}
	plan := b.design.first(topic)
	if err := declare(ctx, b.publishing, plan); err != nil {
		return fmt.Errorf("rabbitmq: publish to %s: %w", topic, err)
	}
	b.waits.add(plan.Queues, brokers.Depth{Topic: topic, Kind: brokers.DepthDelayed})
	b.declared.Store(topic, struct{}{})
	return nil
}
