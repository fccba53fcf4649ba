package watermill

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// parking is where messages wait in the Delays broker.
type parking struct {
	t      *transport
	delays brokers.Broker

	mu      sync.Mutex
	started bool
	sub     message.Subscriber
	ended   sync.WaitGroup
}

const (
	parkedConsumer = "redrive" // the consumer of everything parked
	parkedPrefix   = "x-parked-"
	parkedTopic    = parkedPrefix + "topic"
)

// parkedKeys are headers that the Delays broker would interpret.
var parkedKeys = []string{
	envelope.KeyStage, envelope.KeySuspect, envelope.KeyNotBefore, envelope.KeyTopic, envelope.KeyConsumer,
	envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil,
}

func newParking(t *transport) *parking {
	return &parking{t: t, delays: t.cfg.Delays}
}

// kindOf is kafka for watermill+kafka://: brokers of several kinds may share their Delays.
func kindOf(url string) string {
	scheme, _, _ := strings.Cut(url, ":")
	return strings.TrimPrefix(scheme, Scheme+"+")
}

// RetryTopic is where the retries of a consumer wait in the Delays of a broker with that URL: no other consumer has a
// queue of that name.
func RetryTopic(url, topic, consumer string) string {
	if consumer == "" {
		consumer = brokers.DefaultGroup
	}
	return topic + "." + consumer + "." + kindOf(url) + "_retries"
}

// firstTopic is where first deliveries of all topics wait.
func (p *parking) firstTopic() string {
	return "redrive_" + kindOf(p.t.broker.URL) + "_first_deliveries"
}

// putRetry stores a message for one consumer.
func (p *parking) putRetry(ctx context.Context, o *driver.Outgoing) error {
	if o.ExistingOnly {
		ctx = envelope.WithExistingOnly(ctx)
	}
	return p.put(ctx, RetryTopic(p.t.broker.URL, o.To.Topic, o.To.Consumer), rendered(o), o.Due)
}

// putFirst stores a message that is to be published later.
func (p *parking) putFirst(ctx context.Context, o *driver.Outgoing) error {
	if err := p.start(); err != nil { //nolint:contextcheck // its work outlives ctx, see forward
		return err
	}
	m := rendered(o)
	m.Metadata[parkedTopic] = topicOf(o.To)
	return p.put(ctx, p.firstTopic(), m, o.Due)
}

func (p *parking) put(ctx context.Context, topic string, m *message.Message, due time.Time) error {
	for _, key := range parkedKeys {
		if value, ok := m.Metadata[key]; ok {
			m.Metadata[parkedPrefix+key] = value
			delete(m.Metadata, key)
		}
	}
	delay := time.Duration(0)
	if !due.IsZero() {
		delay = max(time.Until(due), 0)
	}
	origin := envelope.Origin{Topic: topic, Consumer: parkedConsumer}
	if err := p.delays.Reschedule(ctx, origin, m, delay); err != nil {
		return fmt.Errorf("delays: %w", err)
	}
	return nil
}

// taken restores a parked message.
func taken(m *message.Message) *message.Message {
	out := message.NewMessage(m.UUID, m.Payload)
	maps.Copy(out.Metadata, m.Metadata)
	for _, key := range parkedKeys {
		delete(out.Metadata, key)
		if value, ok := m.Metadata[parkedPrefix+key]; ok {
			out.Metadata[key] = value
			delete(out.Metadata, parkedPrefix+key)
		}
	}
	delete(out.Metadata, parkedTopic)
	return out
}

// subscribe reads the retries of a consumer.
func (p *parking) subscribe(ctx context.Context, q *driver.Queue) (message.Subscriber, <-chan *message.Message, error) {
	return p.read(ctx, RetryTopic(p.t.broker.URL, q.Topic, q.Group), q.Concurrency)
}

func (p *parking) read(ctx context.Context, topic string, concurrency int) (message.Subscriber, <-chan *message.Message,
	error,
) {
	sub := p.delays.Subscriber(brokers.WithGroup(parkedConsumer), brokers.WithConcurrency(concurrency))
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		_ = sub.Close()
		return nil, nil, fmt.Errorf("delays: %w", err)
	}
	return sub, messages, nil
}

// start publishes first deliveries as they become due.
func (p *parking) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started {
		return nil
	}
	sub, messages, err := p.read(context.Background(), p.firstTopic(), 1)
	if err != nil {
		return err
	}
	p.sub, p.started = sub, true
	p.ended.Go(func() {
		for m := range messages {
			p.forward(m)
		}
	})
	return nil
}

// forward publishes one. The Delays broker keeps a message that cannot be published, and redelivers it after a pause.
func (p *parking) forward(m *message.Message) {
	topic := m.Metadata[parkedTopic]
	out := taken(m)
	out.SetContext(m.Context())
	if err := p.t.cfg.Publisher.Publish(topic, out); err != nil {
		p.t.broker.Logger.Warn("watermill: a message whose first delivery is due cannot be published and will be retried",
			"topic", topic, "message_id", strings.ToValidUTF8(m.UUID, "?"), "error", err.Error())
		m.Nack()
		return
	}
	m.Ack()
}

func (p *parking) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started {
		_ = p.sub.Close()
		p.ended.Wait()
	}
}
