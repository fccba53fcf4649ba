package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// publisher is watermill-kafka's, but creates topics first and returns errors that the engine knows.
type publisher struct {
	client *client
	inner  *wkafka.Publisher
}

// Publish creates a missing topic, also one that was deleted meanwhile.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	for try := 1; ; try++ {
		err := p.publish(topic, messages)
		gone := errors.Is(err, sarama.ErrUnknownTopicOrPartition)
		if !gone || try == 2 {
			return translate(err)
		}
		p.client.topics.forget(topic)
		if len(messages) > 1 { // some may have been stored
			return translate(err)
		}
	}
}

func (p *publisher) publish(topic string, messages []*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(messages[0].Context(), p.client.cfg.Broker.PublishTimeout)
	defer cancel()
	if err := p.client.topics.ensure(ctx, topic); err != nil {
		return err
	}
	for _, m := range messages { // watermill-kafka does the same, but does not stop when the context ends
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.inner.Publish(topic, m); err != nil {
			return err
		}
	}
	return nil
}

// Close implements message.Publisher.
func (p *publisher) Close() error { return errors.Join(p.inner.Close(), p.client.close()) }

// translate turns errors of sarama into those that the engine knows.
func translate(err error) error {
	var config sarama.ConfigurationError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition) || errors.Is(err, sarama.ErrInvalidTopic):
		return fmt.Errorf("%w: %w", brokers.ErrUnroutable, err)
	case errors.Is(err, sarama.ErrMessageSizeTooLarge),
		errors.As(err, &config) && strings.Contains(string(config), "larger than"): // sarama v1.61 has no typed error for it
		return fmt.Errorf("%w: %w", brokers.ErrTooLarge, err)
	}
	return err
}
