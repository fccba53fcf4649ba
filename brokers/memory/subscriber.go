package memory

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

type subscriber struct {
	broker *Broker
	cfg    brokers.SubscriberConfig
	fault  error // of the options; Subscribe returns it

	closing chan struct{}

	mu            sync.Mutex // guards stopped, and subscriptions.Add against subscriptions.Wait
	stopped       bool
	subscriptions sync.WaitGroup
}

var _ message.SubscribeInitializer = (*subscriber)(nil)

// SubscribeInitialize makes the group's queue, so that what is published from now on is kept for it.
func (s *subscriber) SubscribeInitialize(topic string) error {
	if s.fault != nil {
		return s.fault
	}
	s.queue(topic)
	return nil
}

func (s *subscriber) queue(topic string) *queue {
	return s.broker.store.queue(consumer{topic, group(s.cfg.Group)}, s.cfg.Patterns...)
}

// Subscribe implements message.Subscriber; see brokers.Broker for how it ends.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.fault != nil {
		return nil, s.fault
	}
	if !s.begin() {
		return nil, fmt.Errorf("memory: subscribe to %s: %w", topic, brokers.ErrClosed)
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	sub := &subscription{
		broker:  s.broker,
		topic:   topic,
		group:   group(s.cfg.Group),
		queue:   s.queue(topic),
		base:    base,
		out:     make(chan *message.Message),
		stop:    make(chan struct{}),
		expired: make(chan struct{}),
	}
	for range s.cfg.Concurrency {
		sub.workers.Go(sub.work)
	}
	go func() {
		defer s.end()
		defer cancel()
		select {
		case <-ctx.Done():
		case <-s.closing:
		case <-s.broker.closing:
		}
		sub.drain(s.cfg.DrainTimeout)
	}()
	return sub.out, nil
}

func (s *subscriber) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || !s.broker.begin() {
		return false
	}
	s.subscriptions.Add(1)
	return true
}

func (s *subscriber) end() {
	s.subscriptions.Done()
	s.broker.subscriptions.Done()
}

// Close drains. A second Close waits for the first.
func (s *subscriber) Close() error {
	s.mu.Lock()
	first := !s.stopped
	s.stopped = true
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	s.subscriptions.Wait()
	return nil
}
