package kafka

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// DeadLetter stores d.Message in the dead letter topic of its consumer, on the partition it came from; see
// brokers.Broker. A record that is too large loses the trace of its error first; if that is not enough its body goes
// to Driver.Fallback, and the record says so.
func (b *Broker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if err := b.deadLetter(ctx, d); err != nil {
		return fmt.Errorf("kafka: dead letter of group %s on topic %s: %w", d.Origin.Consumer, d.Origin.Topic, err)
	}
	b.flights.died(&d.Origin)
	return nil
}

func (b *Broker) deadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if b.isClosed() {
		return brokers.ErrClosed
	}
	if d.Origin.Topic == "" {
		return errors.New("the origin names no topic: it did not come from this driver")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	partitions, err := b.topics.existing(ctx, b.source(d.Origin.Topic))
	if err != nil {
		return err
	}
	name := b.cfg.Naming.For(d.Origin.Topic, d.Origin.Consumer).Dead
	have, _, err := b.topics.ensure(ctx, b.forever(name, "the dead letter topic", partitions))
	if err != nil {
		return err
	}
	r := newWaiting(name, d.Message, &d.Origin)
	if r.Partition >= have {
		r.Partition = anyPartition
	}
	if d.Reason != "" && d.Message.Metadata[envelope.KeyDeadLetterReason] == "" {
		r.Headers = append(r.Headers, header(envelope.KeyDeadLetterReason, string(d.Reason)))
	}
	if d.Err.Message != "" && d.Message.Metadata[envelope.KeyErrorMessage] == "" {
		r.Headers = append(r.Headers, header(envelope.KeyErrorMessage, d.Err.Message))
	}
	topic := b.forever(name, "the dead letter topic", partitions)
	send := func(r *kgo.Record) error { return b.sendTo(ctx, topic, b.waits, []*kgo.Record{r}) }
	err = send(r)
	if errors.Is(err, brokers.ErrTooLarge) && shrink(r) {
		err = send(r)
	}
	if errors.Is(err, brokers.ErrTooLarge) && b.fallback != nil {
		if stored := b.fallback.DeadLetter(ctx, d); stored != nil {
			return errors.Join(err, stored)
		}
		return send(reference(r, d.Message.Payload))
	}
	return err
}

// keptOfMessage is what is left of an error's text in a record that has no room for it.
const keptOfMessage = 200

// shrink takes away what the record can spare: the trace of the error, then most of its text. It reports whether there
// was anything.
func shrink(r *kgo.Record) bool {
	before := size(r)
	r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool {
		return h.Key == envelope.KeyErrorTrace
	})
	for i, h := range r.Headers {
		switch h.Key {
		case envelope.KeyErrorMessage, envelope.KeyPoisonReason, envelope.KeyConsumerError, envelope.KeyDeadLetterRule:
			r.Headers[i].Value = h.Value[:min(len(h.Value), keptOfMessage)]
		}
	}
	return size(r) < before
}

// reference renders the record of a dead letter whose message, body and foreign headers, is kept elsewhere.
func reference(r *kgo.Record, payload []byte) *kgo.Record {
	sum := sha256.Sum256(payload)
	short := &kgo.Record{Topic: r.Topic, Key: r.Key, Partition: r.Partition}
	for _, h := range r.Headers {
		if envelope.IsOurs(h.Key) || transport(h.Key) {
			short.Headers = append(short.Headers, h)
		}
	}
	short.Headers = append(short.Headers, header(headerReference,
		fmt.Sprintf("kept in the fallback store; %d bytes, sha256 %s", len(payload), hex.EncodeToString(sum[:]))))
	return short
}
