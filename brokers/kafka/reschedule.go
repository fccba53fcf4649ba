package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Reschedule puts m into a retry topic of origin's group, from which only that group reads it, once delay has passed;
// see brokers.Broker.
func (b *Broker) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	fail := func(err error) error {
		return fmt.Errorf("kafka: reschedule for group %s on topic %s: %w", origin.Consumer, origin.Topic, err)
	}
	switch {
	case b.isClosed():
		return fail(brokers.ErrClosed)
	case origin.Topic == "" || origin.Consumer == "":
		return fail(errors.New("the origin names no topic or no group: it did not come from this driver"))
	case delay > envelope.MaxDelay:
		return fail(fmt.Errorf("%w: a delay of %s, the longest is %s", brokers.ErrUnsupported, delay, envelope.MaxDelay))
	}
	if limit := b.cfg.Params.Bytes("max-message-bytes"); int64(len(m.Payload)) > limit {
		// The headroom of retry topics is for headers: this message was never on the topic.
		return fail(fmt.Errorf("%w: the payload has %d bytes, the limit is %d", brokers.ErrTooLarge, len(m.Payload), limit))
	}
	delay = max(delay, 0)
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()

	partitions, err := b.topics.existing(ctx, b.source(origin.Topic))
	if err != nil {
		return fail(err)
	}
	wait := b.tiers.pick(delay, delay)
	name := b.retryName(origin.Topic, origin.Consumer, wait)
	if err := b.ensureTier(ctx, origin.Topic, name, wait, partitions); err != nil {
		return fail(err)
	}
	r := newWaiting(name, m, &origin)
	if r.Partition == anyPartition || r.Partition >= partitions {
		b.placeByKey(r, partitions)
	}
	r.Headers = append(r.Headers, header(headerWait, millis(delay)), header(headerRetry, "1"))
	err = b.waits.send(ctx, r)
	if errors.Is(err, brokers.ErrTooLarge) && shrink(r) {
		err = b.waits.send(ctx, r)
	}
	if err != nil {
		return fail(err)
	}
	b.ring(r)
	b.flights.rescheduled(&origin)
	return nil
}

// ensureTier makes a retry topic, and tells whoever has to read it when it is new.
func (b *Broker) ensureTier(ctx context.Context, source, name string, wait time.Duration, partitions int32) error {
	_, created, err := b.topics.ensure(ctx, b.tier(name, wait, partitions))
	if err != nil {
		return err
	}
	if created {
		for _, s := range b.subscriptions(source) {
			s.readTier(name, wait)
		}
		b.announce(ctx, source, partitions)
	}
	return nil
}

// announce tells consumers in other processes to look for new retry topics, through one that they read already. They
// look by themselves too, so nothing depends on its success.
func (b *Broker) announce(ctx context.Context, source string, partitions int32) {
	bell := b.cfg.Naming.For(source, "").Delayed(nowTier)
	if _, err := b.topics.existing(ctx, spec{name: bell}); err != nil {
		return // nobody has ever subscribed
	}
	var ring []*kgo.Record
	for p := range partitions {
		ring = append(ring, &kgo.Record{
			Topic: bell, Partition: p, Headers: []kgo.RecordHeader{header(headerControl, controlTiers)},
		})
	}
	if err := b.waits.send(ctx, ring...); err != nil {
		b.log.DebugContext(ctx, "a new retry topic could not be announced", "topic", source, "err", err)
	}
}

// What a control record says.
const (
	controlTiers   = "tiers"   // there are new retry topics
	controlProbe   = "probe"   // nothing; the broker's stamp was wanted
	controlRelease = "release" // a key that is blocked by a dead letter may go on
	controlLock    = "lock"    // in a parking topic: a dead letter blocks the key
)

// next renders a waiting record for its next wait: the same bytes, with the time it is due on the broker's clock.
func next(r *sarama.ConsumerMessage, origin *envelope.Origin, topic string, due time.Time) *kgo.Record {
	to := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		switch string(h.Key) {
		case envelope.KeyNotBefore, envelope.KeyConsumer, envelope.KeyTopic,
			headerPartition, headerOffset, headerTimestamp, headerSource:
			continue // written anew
		}
		to.Headers = append(to.Headers, kgo.RecordHeader{Key: string(h.Key), Value: h.Value})
	}
	to.Headers = append(to.Headers, whereabouts(origin)...)
	to.Headers = append(to.Headers, header(envelope.KeyNotBefore, strconv.FormatInt(due.UnixMilli(), 10)))
	return to
}
