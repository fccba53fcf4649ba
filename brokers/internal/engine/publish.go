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
	if faults == nil {
		return nil
	}
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

// sendOne is send for one message.
func (s *sender) sendOne(ctx context.Context, o *driver.Outgoing) error {
	if faults := s.send(ctx, []driver.Outgoing{*o}); faults != nil {
		return faults[0]
	}
	return nil
}
