package sqlqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Reschedule puts m in front of the group that origin names. While the delivery that m came from is being handled in this
// process, its row itself is changed, so that a crash before the ack delivers nothing twice; otherwise m is a new row. See
// [brokers.Broker].
func (b *Broker) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	done, err := b.enter()
	if err == nil {
		defer done()
		err = b.reschedule(ctx, origin, m, max(delay, 0))
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: reschedule for %q on %q: %w", origin.Consumer, origin.Topic, err)
	}
	return nil
}

func (b *Broker) reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	if delay > envelope.MaxDelay {
		return fmt.Errorf("%w: the delay of %s exceeds %s", brokers.ErrUnsupported, delay, envelope.MaxDelay)
	}
	if err := checkSize(m, b.maxMessage); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PublishTimeout)
	defer cancel()
	r := returning(m, delay)
	if d := b.heldHere(origin, m); d != nil {
		if d.isLost() {
			return ErrLeaseLost
		}
		if d.settle() {
			return b.move(ctx, d, r)
		}
	}
	queue, err := b.queueOf(ctx, origin)
	if err != nil {
		return err
	}
	if err := b.store.insertQueue(ctx, queue, r); err != nil {
		return err
	}
	b.wakeups.wake(queue, delay)
	return nil
}

// heldHere returns the delivery that m came from when this process is still at it, or nil.
func (b *Broker) heldHere(origin envelope.Origin, m *message.Message) *delivery {
	if origin.Offset == nil || origin.Broker != b.scheme {
		return nil
	}
	if d := b.leases.get(*origin.Offset); d != nil && d.subscription.isOrigin(origin) && d.carries(m) {
		return d
	}
	return nil
}

// queueOf returns the queue of the group that origin names.
func (b *Broker) queueOf(ctx context.Context, origin envelope.Origin) (int64, error) {
	group := origin.Consumer
	if group == "" {
		group = b.group()
	}
	queue, found, err := b.store.queue(ctx, origin.Topic, group)
	if err == nil && !found {
		err = fmt.Errorf("%w: this database has no such group; start the consumer once, then try again", brokers.ErrUnroutable)
	}
	return queue, err
}

// returning makes the row of a message that goes back to its consumer. Where it was says nothing once it is back there.
func returning(m *message.Message, delay time.Duration) row {
	delete(m.Metadata, envelope.KeyTopic)
	delete(m.Metadata, envelope.KeyConsumer)
	return newRow(m, delay)
}

// move changes the row of a delivery that is being handled.
func (b *Broker) move(ctx context.Context, d *delivery, r row) error {
	d.leave()
	err := b.mover.move(ctx, moved{row: r, leased: d.leased(), queue: d.subscription.queue})
	if err != nil {
		// Should the row have been moved nevertheless, the next attempt finds the lease gone, and makes no second message.
		if o := d.unsettle(); o != nil {
			b.settler.add(*o)
		} else if errors.Is(err, ErrLeaseLost) {
			d.lose()
		}
		return err
	}
	b.leases.drop(d)
	b.wakeups.wake(d.subscription.queue, r.delay)
	return nil
}
