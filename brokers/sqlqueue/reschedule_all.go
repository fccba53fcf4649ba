package sqlqueue

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// RescheduleAll puts each message in front of the group that its origin names, now, in one transaction: all that have such
// a group, or none. It returns an error for each, nil for stored, in their order. Package dlq redrives whole batches
// through it.
func (b *Broker) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	faults := make([]error, len(messages))
	failAll := func(err error) []error {
		for i := range faults {
			faults[i] = err
		}
		return faults
	}
	if len(origins) != len(messages) {
		return failAll(fmt.Errorf("sqlqueue: reschedule: %d origins for %d messages", len(origins), len(messages)))
	}
	done, err := b.enter()
	if err != nil {
		return failAll(fmt.Errorf("sqlqueue: reschedule %d messages: %w", len(messages), err))
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PublishTimeout)
	defer cancel()

	type consumer struct{ topic, group string }
	type answer struct {
		queue int64
		err   error
	}
	var (
		known  = map[consumer]answer{}
		queues = map[int64][]row{}
		stored []int // which messages the transaction is to store
	)
	for i, m := range messages {
		if b.heldHere(origins[i], m) != nil { // a live delivery's own row is changed
			faults[i] = b.Reschedule(ctx, origins[i], m, 0)
			continue
		}
		c := consumer{origins[i].Topic, origins[i].Consumer}
		a, asked := known[c]
		if !asked {
			a.queue, a.err = b.queueOf(ctx, origins[i])
			known[c] = a
		}
		err := a.err
		if err == nil {
			err = checkSize(m, b.maxMessage)
		}
		if err != nil {
			faults[i] = fmt.Errorf("sqlqueue: reschedule for %q on %q: %w", c.group, c.topic, err)
			continue
		}
		stored = append(stored, i)
		queues[a.queue] = append(queues[a.queue], returning(m, 0))
	}
	if len(stored) == 0 {
		return faults
	}
	if err := b.store.insertQueues(ctx, queues); err != nil {
		for _, i := range stored {
			faults[i] = fmt.Errorf("sqlqueue: reschedule %d messages: %w", len(stored), err)
		}
		return faults
	}
	for queue := range queues {
		b.wakeups.wake(queue, 0)
	}
	return faults
}
