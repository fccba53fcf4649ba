package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// DefaultDelaysTopic is where messages wait in Config.Delays.
const DefaultDelaysTopic = "redrive.delayed"

// lot stores messages whose wait exceeds the transport's in another broker, and returns them when they are due. Every
// process with the same lot does this, so nothing depends on the process that parked a message.
type lot struct {
	b     *Broker
	topic string
	out   message.Publisher
	in    message.Subscriber
	busy  sync.WaitGroup
}

// parked is the header of a parked message that describes its destination.
type parked struct {
	Kind       driver.DestinationKind `json:"kind"`
	Topic      string                 `json:"topic"`
	Consumer   string                 `json:"consumer,omitempty"`
	First      bool                   `json:"first,omitempty"`
	Exchange   string                 `json:"exchange,omitempty"`
	RoutingKey string                 `json:"routing_key,omitempty"`
	Key        []byte                 `json:"key,omitempty"`
	Partition  *int32                 `json:"partition,omitempty"`
	Base       string                 `json:"base,omitempty"` // the original delay, which parking must not change
}

// openLot starts returning messages that are due.
func openLot(b *Broker, cfg Config) (*lot, error) {
	topic, delays := cmp.Or(cfg.DelaysTopic, DefaultDelaysTopic), cfg.Delays
	l := &lot{
		b: b, topic: topic, out: delays.Publisher(),
		in: delays.Subscriber(brokers.WithGroup("redrive"), brokers.WithConcurrency(16), driver.WithoutCrashLimit(delays)),
	}
	ctx, end := context.WithCancel(context.Background())
	opened := context.AfterFunc(cmp.Or(cfg.Context, ctx), end)
	due, err := l.in.Subscribe(ctx, topic)
	if !opened() {
		err = cmp.Or(err, context.Cause(cfg.Context))
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("%s: delays: %w", b.traits.Name, err)
	}
	l.busy.Go(func() {
		for m := range due {
			l.busy.Go(func() { l.bring(m) })
		}
	})
	return l, nil
}

// park stores o until d has passed.
func (l *lot) park(ctx context.Context, o *driver.Outgoing, d time.Duration) error {
	p := parked{
		Kind: o.To.Kind, Topic: o.To.Topic, Consumer: o.To.Consumer, First: o.First,
		Base: o.Message.Metadata[envelope.KeyOriginalDelay],
	}
	if o.Origin != nil {
		p.Exchange, p.RoutingKey, p.Key, p.Partition = o.Origin.Exchange, o.Origin.RoutingKey, o.Origin.Key,
			o.Origin.Partition
	}
	description, err := json.Marshal(p)
	if err != nil {
		return err
	}
	m := o.Message.Copy()
	disclose(m) // the other broker does not restore them
	for _, h := range o.Extra {
		m.Metadata[h.Key] = h.Value
	}
	// For a leftover, Publish takes the stage.
	if stage, ok := m.Metadata[envelope.KeyStage]; ok {
		m.Metadata[keyParkedStage] = stage
	}
	m.Metadata[keyParked] = string(description)
	envelope.SetDelay(m, d)
	m.SetContext(ctx)
	if err := l.out.Publish(l.topic, m); err != nil {
		return fmt.Errorf("delays: %w", err)
	}
	return nil
}

// Headers of a parked message.
const (
	keyParked      = "x-redrive-parked"
	keyParkedStage = "x-redrive-parked-stage"
)

// bring publishes a message that is due.
func (l *lot) bring(m *message.Message) {
	err := l.forward(m.Copy())
	if err == nil {
		m.Ack()
		return
	}
	l.b.warn("a message that is due cannot be published and will be retried", err, "message_id", m.UUID)
	m.Nack() // the other broker paces the redelivery
}

func (l *lot) forward(m *message.Message) error {
	var p parked
	if err := json.Unmarshal([]byte(m.Metadata[keyParked]), &p); err != nil || p.Topic == "" {
		return errors.Join(errors.New("the message was not parked by this module"), err)
	}
	delete(m.Metadata, keyParked)
	if delete(m.Metadata, envelope.KeyOriginalDelay); p.Base != "" {
		m.Metadata[envelope.KeyOriginalDelay] = p.Base
	}
	o := driver.Outgoing{
		Message: m, To: l.b.destination(p.Kind, p.Topic, p.Consumer), First: p.First,
		Origin: &envelope.Origin{
			Broker: l.b.caps.Scheme, Topic: p.Topic, Consumer: p.Consumer,
			Exchange: p.Exchange, RoutingKey: p.RoutingKey, Key: p.Key, Partition: p.Partition,
		},
	}
	if p.Kind == driver.ToTopic {
		o.Origin = nil
	}
	if stage, ok := m.Metadata[keyParkedStage]; ok {
		delete(m.Metadata, keyParkedStage)
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyStage, Value: stage})
	}
	return l.b.sender.sendOne(context.Background(), &o)
}

// close stops returning messages. Parked ones wait for another process.
func (l *lot) close() error {
	err := errors.Join(l.in.Close(), l.out.Close())
	l.busy.Wait()
	return err
}
