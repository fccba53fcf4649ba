package sql

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// subscriber reads topics for a group, with one of watermill-sql's for each subscription.
type subscriber struct {
	client  *client
	group   string
	closing chan struct{}
	close   sync.Once
	ended   sync.WaitGroup
}

func (c *client) subscriber(group string) (message.Subscriber, error) {
	if group == brokers.DefaultGroup {
		group = "" // as in plain Watermill services
	}
	return &subscriber{client: c, group: group, closing: make(chan struct{})}, nil
}

// closeTimeout bounds the wait for the transaction of an ack.
const closeTimeout = 5 * time.Second

// Subscribe ends in order. If its context ends, watermill-sql rolls back the last ack; if it is closed, it commits.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	c := s.client
	c.forget(topic) // it may have been dropped
	if err := c.ensure(ctx, topic); err != nil {
		return nil, err
	}
	offsets := c.offsets
	if mysql, ok := offsets.(mySQLOffsets); ok {
		switch has, err := mysql.has(ctx, c.db, topic, s.group); {
		case err != nil:
			return nil, c.hide(c.dialect.Mark(err, driver.ErrTemporary))
		case has:
			offsets = begun{offsets}
		}
	}
	p := c.cfg.Broker.Params
	deadline, busy := p.Duration("ack-deadline"), &atomic.Bool{}
	cfg := wsql.SubscriberConfig{
		ConsumerGroup: s.group, AckDeadline: &deadline, PollInterval: p.Duration("poll"),
		ResendInterval: 10 * time.Millisecond,
		SchemaAdapter:  busySchema{c.schema, busy}, OffsetsAdapter: offsets,
	}
	if c.cfg.Change != nil {
		c.cfg.Change(&cfg)
	}
	inner, err := wsql.NewSubscriber(c.reading, cfg, c.logger)
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	messages, err := inner.Subscribe(running, topic)
	if err != nil {
		cancel()
		return nil, c.hide(c.dialect.Mark(err, driver.ErrTemporary))
	}
	s.ended.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.closing:
		}
		if !busy.Load() {
			cancel() // it may be waiting for another member's lock, which Close does not interrupt
		}
		timer := time.AfterFunc(closeTimeout, cancel)
		_ = inner.Close()
		timer.Stop()
		cancel()
	})
	return messages, nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.close.Do(func() { close(s.closing) })
	s.ended.Wait()
	return nil
}

// busySchema tracks whether a transaction holds messages: from the first row until the next query, which follows the
// commit.
type busySchema struct {
	wsql.SchemaAdapter

	busy *atomic.Bool
}

// SelectQuery implements wsql.SchemaAdapter.
func (n busySchema) SelectQuery(topic, group string, offsets wsql.OffsetsAdapter) wsql.Query {
	n.busy.Store(false)
	return n.SchemaAdapter.SelectQuery(topic, group, offsets)
}

// UnmarshalMessage implements wsql.SchemaAdapter.
func (n busySchema) UnmarshalMessage(row wsql.Scanner) (wsql.Row, error) {
	n.busy.Store(true)
	return n.SchemaAdapter.UnmarshalMessage(row)
}
