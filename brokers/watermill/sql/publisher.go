package sql

import (
	"context"
	"errors"
	"fmt"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// publisher is watermill-sql's, with tables made first and errors that the engine can decide on.
type publisher struct {
	client *client
	inner  *wsql.Publisher
}

// Publish makes tables that are missing, also those that were dropped since. A call is one INSERT: all are stored, or
// none.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	for try := 1; ; try++ {
		err := p.publish(topic, messages)
		if try == 2 || !missing(err) {
			return p.client.named(err)
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

// named reports what an error means in the engine's words.
func (c *client) named(err error) error {
	switch {
	case err == nil:
		return nil
	case missing(err):
		return fmt.Errorf("%w: %w", brokers.ErrUnroutable, c.hide(err))
	}
	return c.hide(err)
}
