package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

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

	wait := b.tiers.pick(delay, delay)
	r := newWaiting(b.retryName(origin.Topic, origin.Consumer, wait), m, &origin)
	r.Headers = append(r.Headers, header(headerWait, millis(delay)), header(headerRetry, "1"))
	err := b.park(ctx, origin.Topic, waitingRecord{r, wait})
	if errors.Is(err, brokers.ErrTooLarge) && shrink(r) {
		err = b.park(ctx, origin.Topic, waitingRecord{r, wait})
	}
	if err != nil {
		return fail(err)
	}
	b.flights.rescheduled(&origin)
	return nil
}

// waitingRecord is a record for a retry topic, and how long that lets it wait.
type waitingRecord struct {
	*kgo.Record
	wait time.Duration
}

// park stores records in retry topics, on the partitions that they name or that their keys have on the source topic,
// because the owner of that partition reads them. Topics are made if they are missing, also when they were deleted
// since they were last used.
func (b *Broker) park(ctx context.Context, source string, records ...waitingRecord) error {
	for again := false; ; again = true {
		send := make([]*kgo.Record, len(records))
		for i, r := range records {
			placed := *r.Record // the client may still hold the one of the last try
			if err := b.place(ctx, source, &placed, r.wait); err != nil {
				return err
			}
			send[i] = &placed
		}
		err := b.waits.send(ctx, send...)
		if err == nil {
			for _, r := range send {
				b.news.arrived(place{r.Topic, r.Partition})
			}
			return nil
		}
		if again || !errors.Is(err, brokers.ErrUnroutable) {
			return err
		}
		for _, r := range send {
			b.topics.forget(r.Topic)
		}
	}
}

// place makes the retry topic of a record, and chooses its partition.
func (b *Broker) place(ctx context.Context, source string, r *kgo.Record, wait time.Duration) error {
	partitions, err := b.topics.including(ctx, b.source(source), r.Partition)
	if err != nil {
		return err
	}
	have, err := b.ensureTier(ctx, source, r.Topic, wait, partitions)
	if err != nil {
		return err
	}
	if r.Partition == anyPartition || r.Partition >= partitions {
		b.placeByKey(r, partitions)
	}
	if r.Partition >= have { // partitions were added to the source, and may not be added here
		b.placeByKey(r, have)
	}
	return nil
}

// ensureTier makes a retry topic, and tells its readers when it is new. It returns its number of partitions.
func (b *Broker) ensureTier(ctx context.Context, source, name string, wait time.Duration, partitions int32) (int32, error) {
	have, created, err := b.topics.ensure(ctx, b.tier(name, wait, partitions))
	if err != nil {
		return 0, err
	}
	if created {
		for _, s := range b.subscriptions(source) {
			s.readTier(name, tier{wait: wait})
			s.lookForTiers() // if it was made again, its readers learn of it
		}
		b.announce(ctx, source, partitions)
	}
	return have, nil
}

// announce tells consumers in other processes to look for new retry topics, through one that they read already. They
// look now and then anyway, so nothing depends on its success.
func (b *Broker) announce(ctx context.Context, source string, partitions int32) {
	shared := b.cfg.Naming.For(source, "").Delayed(nowTier)
	if _, err := b.topics.existing(ctx, spec{name: shared}); err != nil {
		return // nobody has ever subscribed
	}
	var records []*kgo.Record
	for p := range partitions {
		records = append(records, &kgo.Record{
			Topic: shared, Partition: p, Headers: []kgo.RecordHeader{header(headerControl, controlTiers)},
		})
	}
	if err := b.waits.send(ctx, records...); err != nil {
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

// nextWait renders a waiting record for its next wait: the same bytes, with the time it is due on the broker's clock.
func nextWait(r *kgo.Record, origin *envelope.Origin, topic string, due time.Time) *kgo.Record {
	to := &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		switch h.Key {
		case envelope.KeyNotBefore, envelope.KeyConsumer, envelope.KeyTopic,
			headerPartition, headerOffset, headerTimestamp, headerSource, headerIncarnation:
			continue // written anew
		}
		to.Headers = append(to.Headers, h)
	}
	to.Headers = append(to.Headers, whereabouts(origin)...)
	to.Headers = append(to.Headers, header(envelope.KeyNotBefore, strconv.FormatInt(due.UnixMilli(), 10)))
	return to
}
