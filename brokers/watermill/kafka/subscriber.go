package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
)

// subscriber reads topics for a group, with one of watermill-kafka's for each subscription.
type subscriber struct {
	client *client
	group  string

	mu    sync.Mutex
	inner []*wkafka.Subscriber
}

func (c *client) subscriber(group string) (message.Subscriber, error) {
	if group == brokers.DefaultGroup {
		return nil, fmt.Errorf("%w: Kafka needs a consumer group: write group=name in the URL, or subscribe with "+
			"brokers.WithGroup", brokers.ErrUnsupported)
	}
	return &subscriber{client: c, group: group}, nil
}

// Subscribe ends the subscription when the group fails, so that the engine opens another one, paced. watermill-kafka
// itself rejoins at once, hundreds of times a second.
func (s *subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	c := s.client
	c.topics.forget(topic) // it may have been deleted
	if err := c.topics.ensure(ctx, topic); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	inner, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: c.seeds, Unmarshaler: tolerant{c.cfg.Marshaler, c.refused}, OverwriteSaramaConfig: c.base(),
		ConsumerGroup: s.group, Tracer: lateAcks{c.cfg.Tracer}, ReconnectRetrySleep: 100 * time.Millisecond,
	}, watch{c.logger, cancel})
	if err != nil {
		cancel()
		return nil, err
	}
	messages, err := inner.Subscribe(ctx, topic)
	if err != nil {
		cancel()
		return nil, notReady(err)
	}
	s.mu.Lock()
	s.inner = append(s.inner, inner)
	s.mu.Unlock()
	return messages, nil
}

// Close implements message.Subscriber.
func (s *subscriber) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, inner := range s.inner {
		errs = append(errs, inner.Close())
	}
	return errors.Join(errs...)
}

func (c *client) refused(r *sarama.ConsumerMessage, err error) {
	c.cfg.Broker.Logger.Warn("watermill+kafka: the marshaler refuses a record, which is delivered unchanged",
		"topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err.Error())
}

// watch is the logger of one subscription. watermill-kafka v3.1.2 reports only there that its group has failed.
type watch struct {
	watermill.LoggerAdapter

	fail context.CancelFunc
}

// Error notices the two errors after which watermill-kafka starts over.
func (w watch) Error(msg string, err error, fields watermill.LogFields) {
	w.LoggerAdapter.Error(msg, err, fields)
	if msg == "Group consume error" || msg == "Cannot reconnect messages consumer" {
		w.fail()
	}
}

// With implements watermill.LoggerAdapter.
func (w watch) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return watch{w.LoggerAdapter.With(fields), w.fail}
}
