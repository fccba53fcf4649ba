package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Marshaler writes the same as watermill-kafka's DefaultMarshaler, plus the key of the record, and reads every record.
type Marshaler struct{}

var _ wkafka.MarshalerUnmarshaler = Marshaler{}

// keyTombstone is "true" on a record whose value is null, as in package brokers/kafka.
const keyTombstone = "x-kafka-tombstone"

// Marshal takes the key from metadata x-kafka-key. Without one the record has none, and goes to any partition.
func (Marshaler) Marshal(topic string, m *message.Message) (*sarama.ProducerMessage, error) {
	headers := make([]sarama.RecordHeader, 0, len(m.Metadata)+1)
	headers = append(headers, header(wkafka.UUIDHeaderKey, m.UUID))
	for name, value := range m.Metadata {
		switch name {
		case wkafka.UUIDHeaderKey, envelope.KeyKafkaKey, keyTombstone:
		default:
			headers = append(headers, header(name, value))
		}
	}
	r := &sarama.ProducerMessage{Topic: topic, Headers: headers}
	if len(m.Payload) > 0 || m.Metadata[keyTombstone] == "" {
		r.Value = sarama.ByteEncoder(append([]byte{}, m.Payload...))
	}
	if key, ok := m.Metadata[envelope.KeyKafkaKey]; ok {
		r.Key = sarama.ByteEncoder(key)
	}
	return r, nil
}

func header(name, value string) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(name), Value: []byte(value)}
}

// Unmarshal never fails. A record that is not Watermill's has an id that follows from its position.
func (Marshaler) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	uuid := ""
	metadata := make(message.Metadata, len(r.Headers)+1)
	for _, h := range r.Headers {
		if string(h.Key) == wkafka.UUIDHeaderKey {
			uuid = string(h.Value)
			continue
		}
		metadata[string(h.Key)] = string(h.Value)
	}
	if uuid == "" {
		uuid = envelope.StableID(&envelope.Origin{
			Broker: Scheme, Topic: r.Topic,
			Position:    strconv.FormatInt(int64(r.Partition), 10) + "/" + strconv.FormatInt(r.Offset, 10),
			Incarnation: strconv.FormatInt(r.Timestamp.UnixMilli(), 10), // sarama has neither the topic's id nor an epoch
		})
	}
	if r.Key != nil {
		metadata[envelope.KeyKafkaKey] = string(r.Key)
	}
	if r.Value == nil {
		metadata[keyTombstone] = "true"
	}
	m := message.NewMessage(uuid, r.Value)
	m.Metadata = metadata
	return m, nil
}

// tolerant delivers a record that a user's Unmarshaler refuses as it is: watermill-kafka would never get past it. The
// handler then fails to decode it, and the pipeline makes a dead letter of it.
type tolerant struct {
	wkafka.Unmarshaler

	refused func(r *sarama.ConsumerMessage, err error)
}

// Unmarshal implements watermill-kafka's Unmarshaler.
func (t tolerant) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	m, err := t.Unmarshaler.Unmarshal(r)
	if err == nil {
		return m, nil
	}
	t.refused(r, err)
	return Marshaler{}.Unmarshal(r)
}

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

// lateAcks lets a handler that was running when a rebalance began have its offset committed. watermill-kafka v3.1.2
// drops an ack when the session's context has ended, although sarama commits what is marked until every claim has
// returned: each rebalance then redelivered messages in flight. A tracer is where its group's handler can be wrapped.
type lateAcks struct{ wkafka.SaramaTracer }

// WrapConsumerGroupHandler implements watermill-kafka's SaramaTracer.
func (t lateAcks) WrapConsumerGroupHandler(handler sarama.ConsumerGroupHandler) sarama.ConsumerGroupHandler {
	if t.SaramaTracer != nil {
		handler = t.SaramaTracer.WrapConsumerGroupHandler(handler)
	}
	return lateHandler{handler}
}

type lateHandler struct{ sarama.ConsumerGroupHandler }

// ConsumeClaim implements sarama.ConsumerGroupHandler.
func (h lateHandler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	return h.ConsumerGroupHandler.ConsumeClaim(lateSession{session}, claim)
}

type lateSession struct{ sarama.ConsumerGroupSession }

// Context implements sarama.ConsumerGroupSession.
func (s lateSession) Context() context.Context { return lateContext{s.ConsumerGroupSession.Context()} }

// lateContext is done when the session is, which ends the claim after the message in flight, but has no error:
// watermill-kafka checks for that before it passes an ack on.
type lateContext struct{ context.Context }

// Err implements context.Context.
func (lateContext) Err() error { return nil }
