package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// publisher is a handle on the broker. It is safe for concurrent use.
type publisher struct{ broker *Broker }

// Publisher implements brokers.Broker.
func (b *Broker) Publisher() message.Publisher { return &publisher{broker: b} }

// String is the publisher's name in Watermill's contexts and metrics.
func (p *publisher) String() string { return p.broker.traits.Name + ".Publisher" }

// Publish implements message.Publisher. The context of the first message bounds the wait for all. If one of them is
// certain to be refused, none is stored.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	return envelope.PublishProduced(func(messages ...*message.Message) error {
		b := p.broker
		if !b.calls.enter() {
			return fmt.Errorf("%s: publish to %s: %w", b.traits.Name, topic, brokers.ErrClosed)
		}
		defer b.calls.Done()
		if err := b.publish(topic, messages); err != nil {
			return fmt.Errorf("%s: publish to %s: %w", b.traits.Name, topic, err)
		}
		return nil
	}, messages...)
}

// Close implements message.Publisher. It does nothing: Watermill's router closes the publisher of each handler that
// stops, and other handlers may share it. The messages that they return could no longer be published, and a shutdown
// would dead-letter those at their last attempt.
func (p *publisher) Close() error { return nil }

func (b *Broker) publish(topic string, messages []*message.Message) error {
	out, err := b.Outgoing(topic, messages)
	if err != nil || len(out) == 0 {
		return err
	}
	if b.lot != nil {
		if out, err = b.parkLong(messages[0].Context(), out); err != nil || len(out) == 0 {
			return err
		}
	}
	return joined(b.sender.send(messages[0].Context(), out))
}

// Outgoing prepares the first publications of messages, for drivers that can also store them in other ways, such as in
// a transaction of the caller's.
func (b *Broker) Outgoing(topic string, messages []*message.Message) ([]driver.Outgoing, error) {
	out := make([]driver.Outgoing, len(messages))
	to := b.destination(driver.ToTopic, topic, "")
	for i, m := range messages {
		if err := b.first(&out[i], to, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parkLong parks messages whose wait exceeds the transport's, and returns the rest.
func (b *Broker) parkLong(ctx context.Context, out []driver.Outgoing) (rest []driver.Outgoing, err error) {
	for i := range out {
		if d := out[i].Delay; d <= 0 || d <= b.longest && !b.traits.DelayRetriesOnly {
			rest = append(rest, out[i])
			continue
		}
		if err := b.lot.park(ctx, &out[i], out[i].Delay); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// first prepares the first publication of m.
func (b *Broker) first(o *driver.Outgoing, to *driver.Destination, m *message.Message) error {
	*o = driver.Outgoing{Message: m, To: to, First: true, ExistingOnly: envelope.ExistingOnly(m.Context())}
	if has(m, ownState[:]...) ||
		has(m, envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil) {
		m = m.Copy() // the caller keeps its message
		delay, _ := envelope.TakeDelay(m)
		for _, key := range ownState {
			delete(m.Metadata, key)
		}
		o.Message = m
		if err := b.delay(o, delay, time.Now()); err != nil {
			return err
		}
	}
	if !b.traits.StablePosition {
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyStage, Value: newStage()})
	}
	return b.fits(o)
}

// delay asks the transport to hand o out after d.
func (b *Broker) delay(o *driver.Outgoing, d time.Duration, now time.Time) error {
	switch longest := b.caps.MaxDelay; {
	case d <= 0:
		return nil
	case longest == 0:
		return fmt.Errorf("%w: a delay of %s: this broker cannot delay as configured", brokers.ErrUnsupported, d)
	case d > longest:
		return fmt.Errorf("%w: a delay of %s: the longest is %s", brokers.ErrUnsupported, d, longest)
	}
	o.Delay = d
	o.Due = now.Add(d)
	if b.traits.Early && d <= b.longest {
		from := strconv.FormatInt(o.Due.Add(time.Millisecond-1).UnixMilli(), 10) // rounded up, so that it is never early
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyNotBefore, Value: from})
	}
	return nil
}

// ownState are headers that only the engine writes: on a first publication they are left over from another delivery, or
// forged.
var ownState = [...]string{envelope.KeyNotBefore, envelope.KeyStage, envelope.KeySuspect, envelope.KeyEnclosed}

// has reports whether a message has any of the headers.
func has(m *message.Message, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, ok := m.Metadata[key]; return ok })
}

// fits refuses messages that exceed the broker's limits. On the way to a retry our own headers do not count, because a
// transport reserves driver.Headroom for them: every published message can be retried. A foreign one may be larger; its
// dead letter is limited by the server alone.
func (b *Broker) fits(o *driver.Outgoing) error {
	limit := b.caps.MaxMessageBytes
	if limit == 0 && b.caps.MaxHeaderBytes == 0 || b.traits.OwnRoom && o.To.Kind != driver.ToTopic {
		return nil
	}
	var headers int64
	for k, v := range o.Headers() {
		if o.First || !envelope.IsOurs(k) {
			headers += int64(len(k) + len(v))
		}
	}
	byServer := o.To.Kind == driver.ToDeadLetters && !b.traits.Local // a foreign producer may have sent more
	if n := headers + int64(len(o.Message.Payload)); limit > 0 && n > limit && !byServer {
		return fmt.Errorf("%d bytes, at most %d: %w", n, limit, brokers.ErrTooLarge)
	}
	if most := b.caps.MaxHeaderBytes; most > 0 && headers > most && !b.enclose(o) {
		return fmt.Errorf("%d bytes of headers, at most %d: %w", headers, most, brokers.ErrTooLarge)
	}
	return nil
}

// joined combines several errors, listing equal causes once: 500 messages that fail for one reason yield one sentence.
func joined(faults []error) error {
	var different []error
	more, seen := 0, map[string]bool{}
	for _, err := range faults {
		switch {
		case err == nil:
		case seen[err.Error()]:
			more++
		default:
			seen[err.Error()] = true
			different = append(different, err)
		}
	}
	if more > 0 {
		different[0] = fmt.Errorf("%w (and %d more of the %d messages)", different[0], more, len(faults))
	}
	if len(different) == 1 {
		return different[0]
	}
	return errors.Join(different...)
}

func (s *sender) sendOne(ctx context.Context, o *driver.Outgoing) error {
	if faults := s.send(ctx, []driver.Outgoing{*o}); faults != nil {
		return faults[0]
	}
	return nil
}

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
	*o = driver.Outgoing{
		Message: m, To: b.destination(driver.ToConsumer, origin.Topic, b.consumerIn(origin)), Origin: origin,
		ExistingOnly: envelope.ExistingOnly(ctx),
	}
	h := deliveryOf(ctx, origin, m)
	if err := b.checkSubscriber(ctx, o, h); err != nil {
		return err
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

// supplier is where Reschedule may get messages from, other than its own broker.
type supplier struct {
	broker          *Broker // nil: a plain subscriber of Watermill
	topic, consumer string
}

// checkSubscriber fails if the delivery of ctx, h if it is one of this module, came from a subscriber that does not
// read what is rescheduled here. The message would be acked there, and lost.
func (b *Broker) checkSubscriber(ctx context.Context, o *driver.Outgoing, h *delivery) error {
	at, name := supplier{topic: o.To.Topic, consumer: o.To.Consumer}, message.SubscriberNameFromCtx(ctx)
	var from driver.Transport
	switch _, ours := envelope.OriginFrom(ctx); {
	case o.ExistingOnly:
		return nil
	case h != nil:
		if h.sub.b == b || h.Origin.Broker != o.Origin.Broker {
			return nil
		}
		at, from = supplier{h.sub.b, h.sub.q.Topic, h.sub.q.Group}, h.sub.b.transport
		name = brokers.Redact(h.sub.b.cfg.URL)
	case ours, o.Origin.Consumer != "", message.SubscribeTopicFromCtx(ctx) != o.Origin.Topic,
		b.readers.has(b.namesFor(o.Origin.Topic, b.cfg.Group).Queue): // a decorator may have lost the origin
		return nil
	}
	if _, known := b.reached.Load(at); known {
		return nil
	}
	ok, err := b.reaches(ctx, o, from)
	switch {
	case err != nil:
		return fmt.Errorf("whether it came from this broker is unknown: %w", err)
	case !ok:
		return fmt.Errorf("%w: it came from %s, which does not read what is rescheduled here: set Rescheduler to the "+
			"handler's own broker (brokers/watermill makes one of any Pub/Sub) or HoldInMemory", brokers.ErrUnroutable, name)
	}
	b.reached.Store(at, true)
	return nil
}

func (b *Broker) reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	r, ok := b.transport.(driver.Reacher)
	switch {
	case ok:
	case from == nil:
		return b.traits.ConsumerIsQueue, nil // it may read that queue
	default:
		return from.Traits().Name == b.traits.Name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PublishTimeout)
	defer cancel()
	return boundedOf(ctx, &b.traits, func(ctx context.Context) (bool, error) { return r.Reaches(ctx, o, from) }, nil)
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
