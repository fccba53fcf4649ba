package sql

import (
	"context"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// publisher is watermill-sql's, but creates tables first and returns errors that the engine knows.
type publisher struct {
	client *client
	inner  *wsql.Publisher
}

// Publish creates missing tables, including those that were dropped. A call is one INSERT: it stores all messages or
// none.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	for try := 1; ; try++ {
		err := p.publish(topic, messages)
		if try == 2 || !missing(err) {
			return p.client.translate(err)
		}
		p.client.forget(topic)
	}
}

func (p *publisher) publish(topic string, messages []*message.Message) error {
	ctx, cancel := context.WithTimeout(messages[0].Context(), p.client.cfg.Broker.PublishTimeout)
	defer cancel()
	if err := p.client.ensure(ctx, topic); err != nil {
		return err
	}
	return p.inner.Publish(topic, messages...)
}

// Close implements message.Publisher.
func (p *publisher) Close() error { return errors.Join(p.inner.Close(), p.client.close()) }

// translate turns an error into one that the engine knows.
func (c *client) translate(err error) error {
	switch {
	case err == nil:
		return nil
	case missing(err):
		return fmt.Errorf("%w: %w", brokers.ErrUnroutable, c.hide(err))
	}
	return c.hide(err)
}
