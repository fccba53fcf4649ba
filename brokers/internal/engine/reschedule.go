package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Reschedule implements brokers.Broker.
func (b *Broker) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	if !b.calls.enter() {
		return fmt.Errorf("%s: reschedule: %w", b.traits.Name, brokers.ErrClosed)
	}
	defer b.calls.Done()
	var o driver.Outgoing
	err := b.prepareReturn(ctx, &o, &origin, m, delay)
	switch {
	case err != nil:
	case o.Delay > b.longest:
		err = b.lot.park(ctx, &o, o.Delay) // otherwise the delay would have been refused
	default:
		err = b.sender.sendOne(ctx, &o)
	}
	if err != nil {
		return b.failed("reschedule", &origin, missingTarget(&o, err))
	}
	if h := deliveryOf(ctx, &origin, m); h != nil {
		h.rescheduled.Add(1)
	}
	return nil
}

// RescheduleAll delivers each message to the consumer of its origin, now, like Reschedule without a delay. It returns
// an error for each in order, nil if stored. Package dlq redrives whole batches through it.
func (b *Broker) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	if len(origins) != len(messages) {
		return all(len(messages), fmt.Errorf("%s: reschedule: %d origins for %d messages", b.traits.Name, len(origins),
			len(messages)))
	}
	if !b.calls.enter() {
		return all(len(messages), fmt.Errorf("%s: reschedule: %w", b.traits.Name, brokers.ErrClosed))
	}
	defer b.calls.Done()
	faults := make([]error, len(messages))
	out, indexes := make([]driver.Outgoing, 0, len(messages)), make([]int, 0, len(messages))
	for i, m := range messages {
		var o driver.Outgoing
		if err := b.prepareReturn(ctx, &o, &origins[i], m, 0); err != nil {
			faults[i] = b.failed("reschedule", &origins[i], err)
			continue
		}
		out, indexes = append(out, o), append(indexes, i)
	}
	if len(out) == 0 {
		return faults
	}
	for n, err := range b.sendEach(ctx, out) {
		if i := indexes[n]; err != nil {
			faults[i] = b.failed("reschedule", &origins[i], missingTarget(&out[n], err))
		}
	}
	return faults
}

// sendEach sends messages that do not depend on each other: where the transport has refused all because of one, each is
// sent alone.
func (b *Broker) sendEach(ctx context.Context, out []driver.Outgoing) []error {
	faults := b.sender.send(ctx, out)
	if len(out) == 1 {
		return faults
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.sender.timeout, b.sender.late)
	defer cancel()
	for i, err := range faults {
		if errors.Is(err, driver.ErrTogether) {
			faults[i] = b.sender.sendOne(ctx, &out[i])
		}
	}
	return faults
}

func (b *Broker) failed(what string, origin *envelope.Origin, err error) error {
	return fmt.Errorf("%s: %s for %q on %q: %w", b.traits.Name, what, origin.Consumer, origin.Topic, err)
}

// missingTarget adds to the error what to do about a destination that was missing and not created.
func missingTarget(o *driver.Outgoing, err error) error {
	if o.ExistingOnly && errors.Is(err, brokers.ErrUnroutable) {
		return driver.MissingTarget(o.Origin, err)
	}
	return err
}

// prepareReturn prepares the publication that returns m to the consumer of origin.
func (b *Broker) prepareReturn(ctx context.Context, o *driver.Outgoing, origin *envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	if origin.Topic == "" && (origin.Consumer == "" || !b.traits.ConsumerIsQueue) {
		return errors.New("the origin names no topic, so there is no consumer to return the message to")
	}
	h := deliveryOf(ctx, origin, m)
	if err := b.checkSubscriber(ctx, origin, h); err != nil {
		return err
	}
	*o = driver.Outgoing{
		Message: m, To: b.destination(driver.ToConsumer, origin.Topic, b.consumerIn(origin)), Origin: origin,
		ExistingOnly: envelope.ExistingOnly(ctx),
	}
	for _, key := range overtaken { // m is ours
		delete(m.Metadata, key)
	}
	if h != nil {
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyStage, Value: nextStage(h)})
	} else { // a redrive starts over, even if the message keeps its position
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyStage, Value: newStage()})
	}
	if err := b.delay(o, delay, time.Now()); err != nil {
		return err
	}
	return b.fits(o)
}

// checkSubscriber fails if the delivery of ctx, h if it is one of this module, came from a subscriber that does not read
// what is rescheduled here. The message would be acked there, and lost.
func (b *Broker) checkSubscriber(ctx context.Context, origin *envelope.Origin, h *delivery) error {
	from, foreign := origin.Broker, false
	if h != nil && h.Origin.Broker == from { // Watermill's adapters take the retries of native members of the same group
		foreign = h.sub.b.traits.Name != b.traits.Name && !strings.HasPrefix(b.caps.Scheme, "watermill+"+from)
	} else if _, ours := envelope.OriginFrom(ctx); !ours && origin.Consumer == "" && !b.traits.ConsumerIsQueue {
		from, foreign = message.SubscriberNameFromCtx(ctx), message.SubscribeTopicFromCtx(ctx) == origin.Topic
	}
	if !foreign || envelope.ExistingOnly(ctx) {
		return nil
	}
	return fmt.Errorf("%w: it came from %s, which does not read what is rescheduled here: set Rescheduler to the handler's "+
		"own broker (brokers/watermill makes one of any Pub/Sub) or HoldInMemory", brokers.ErrUnroutable, from)
}

// overtaken are headers that mean nothing once a message is back at its consumer: which one that is, and its last wait.
var overtaken = [...]string{
	envelope.KeyTopic, envelope.KeyConsumer, envelope.KeyNotBefore, envelope.KeySuspect, envelope.KeyStage,
}

// DeadLetter implements brokers.Broker. The stored message has headers with its origin, for a collector that sends it
// back.
func (b *Broker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if !b.calls.enter() {
		return fmt.Errorf("%s: dead letter: %w", b.traits.Name, brokers.ErrClosed)
	}
	defer b.calls.Done()
	if err := b.deadLetter(ctx, d); err != nil {
		return b.failed("dead letter", &d.Origin, err)
	}
	return nil
}

func (b *Broker) deadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if d.Origin.Topic == "" && (d.Origin.Consumer == "" || !b.traits.ConsumerIsQueue) {
		return errors.New("the origin names no topic, so the naming scheme gives no queue; " +
			"the message did not come from a subscriber of this module")
	}
	m := d.Message.Copy() // d must not be changed
	consumer := b.consumerIn(&d.Origin)
	for _, key := range ownState {
		delete(m.Metadata, key)
	}
	for _, h := range [...]driver.Header{
		{Key: envelope.KeyTopic, Value: d.Origin.Topic},
		{Key: envelope.KeyConsumer, Value: consumer},
		{Key: envelope.KeyExchange, Value: d.Origin.Exchange},
		{Key: envelope.KeyRoutingKey, Value: d.Origin.RoutingKey},
	} {
		if h.Value != "" {
			m.Metadata[h.Key] = h.Value
		}
	}
	for key, value := range map[string]string{
		envelope.KeyDeadLetterReason: string(d.Reason), envelope.KeyErrorMessage: d.Err.Message,
	} {
		if value != "" && m.Metadata[key] == "" {
			m.Metadata[key] = value
		}
	}
	o := driver.Outgoing{Message: m, To: b.destination(driver.ToDeadLetters, d.Origin.Topic, consumer), Origin: &d.Origin}
	if err := b.fits(&o); err != nil {
		return err
	}
	return b.sender.sendOne(ctx, &o)
}

// Readers implements brokers.ReaderCounter.
func (b *Broker) Readers(ctx context.Context, origin envelope.Origin) (n int, err error) {
	counter, ok := b.transport.(driver.ReaderCounter)
	if !ok {
		return 0, fmt.Errorf("%s: readers: %w", b.traits.Name, errors.ErrUnsupported)
	}
	if !b.calls.enter() {
		return 0, fmt.Errorf("%s: readers: %w", b.traits.Name, brokers.ErrClosed)
	}
	defer b.calls.Done()
	to := b.destination(driver.ToConsumer, origin.Topic, b.consumerIn(&origin))
	n, err = boundedOf(ctx, &b.traits, func(ctx context.Context) (int, error) { return counter.Readers(ctx, to) }, nil)
	if err != nil {
		return 0, b.failed("readers", &origin, err)
	}
	return n, nil
}
