package brokers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// MoveConfig configures [Move].
type MoveConfig struct {
	// From is the broker that a consumer leaves, To the one that it moves to. The caller closes both. Required.
	From, To Broker
	// Topic that the consumer subscribes to on both brokers. Required.
	Topic string
	// Group of the consumer on From. Defaults to that of From's configuration.
	Group string
	// Consumer is the consumer on To as envelope.Origin names it: the queue on RabbitMQ, the group elsewhere. Required.
	Consumer string
	// Concurrency is how many messages are moved at once. Defaults to that of From's configuration.
	Concurrency int
	// Moved is called after each moved message. Optional. It may be called concurrently.
	Moved func(m *message.Message)
}

// Move moves the messages that wait for a consumer on one broker to the same consumer on another one, and to no other
// group, until ctx ends. Messages that wait for a retry or their first delivery move when they are due, with their
// count of attempts. A message is acked on the old broker when the new one has confirmed it, so a crash in between
// delivers it twice.
//
// It ends with an error as soon as the new broker refuses a message for good: [ErrTooLarge], [ErrUnroutable] or
// [ErrUnsupported]. The message is then still on the old broker. Other errors, such as a missing permission, are
// retried until no message could be moved for five minutes.
//
// It reads as a member of the consumer's group, so the consumer itself may run on both brokers in the meantime. End it
// when nothing is published to the old broker any more and nothing waits there: see DepthReporter.
func Move(ctx context.Context, cfg MoveConfig) error {
	if cfg.From == nil || cfg.To == nil || cfg.Topic == "" || cfg.Consumer == "" {
		return errors.New("brokers: move: From, To, Topic and Consumer are required")
	}
	opts := []SubscriberOption{WithGroup(cfg.Group)}
	if cfg.Concurrency > 0 {
		opts = append(opts, WithConcurrency(cfg.Concurrency))
	}
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	sub := cfg.From.Subscriber(opts...)
	messages, err := sub.Subscribe(reading, cfg.Topic)
	if err != nil {
		return fmt.Errorf("brokers: move %s: %w", cfg.Topic, errors.Join(err, sub.Close()))
	}
	var moving sync.WaitGroup
	var failing atomic.Int64 // since when nothing could be moved, in nanoseconds; 0 after a success
	for m := range messages {
		moving.Go(func() { cfg.move(m, &failing, stop) }) //nolint:contextcheck // each message has its own
	}
	moving.Wait()
	if refusal := context.Cause(reading); !errors.Is(refusal, context.Cause(ctx)) {
		return errors.Join(refusal, sub.Close())
	}
	return sub.Close()
}

// movePatience is how long it tries without a success: longer than a broker takes to restart.
const movePatience = 5 * time.Minute

// move moves one message. If the new broker rejects it, it is redelivered after a pause, or later if stop is called.
func (cfg *MoveConfig) move(m *message.Message, failing *atomic.Int64, stop context.CancelCauseFunc) {
	moved := m.Copy()
	origin := envelope.Origin{Broker: cfg.To.Capabilities().Scheme, Topic: cfg.Topic, Consumer: cfg.Consumer}
	if from, ok := envelope.OriginFrom(m.Context()); ok {
		origin.Key = from.Key
	}
	ctx := envelope.WithOrigin(context.WithoutCancel(m.Context()), &origin)
	if err := cfg.To.Reschedule(ctx, origin, moved, 0); err != nil {
		failing.CompareAndSwap(0, time.Now().UnixNano())
		if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnroutable) || errors.Is(err, ErrUnsupported) ||
			time.Since(time.Unix(0, failing.Load())) > movePatience {
			stop(fmt.Errorf("brokers: move %s: the new broker refuses message %s; it is still on the old one: remove the "+
				"cause or handle it there, then move the rest: %w", cfg.Topic, m.UUID, err))
		}
		m.Nack()
		return
	}
	m.Ack()
	failing.Store(0)
	if cfg.Moved != nil {
		cfg.Moved(m)
	}
}
