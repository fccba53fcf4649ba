package dlq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// BatchRedriver is a [Redriver] that publishes many messages in one go, which is faster than many calls at once. It is optional: a
// run asks its Redriver for it by a type assertion.
type BatchRedriver interface {
	Redriver
	// RescheduleAll puts each message in front of the consumer of its origin, now. It returns when the broker has confirmed or
	// refused every one, or the context has ended: an error for each, nil for confirmed, in their order.
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

// outgoing is a claimed entry's message on its way.
type outgoing struct {
	entryID int64
	origin  envelope.Origin
	message *message.Message
}

// published is a batch that has been published.
type published struct {
	batch []outgoing
	errs  []error
}

// publishAll publishes a batch and returns when each message is confirmed or refused, after the publish timeout at most.
func (m *Manager) publishAll(ctx context.Context, batch []outgoing) published {
	ctx, cancel := context.WithTimeout(ctx, m.publishTime)
	defer cancel()
	p := published{batch: batch, errs: make([]error, len(batch))}
	if all, ok := m.redriver.(BatchRedriver); ok {
		origins, messages := make([]envelope.Origin, len(batch)), make([]*message.Message, len(batch))
		for i := range batch {
			origins[i], messages[i] = batch[i].origin, batch[i].message
		}
		errs := all.RescheduleAll(ctx, origins, messages)
		if len(errs) != len(batch) {
			err := fmt.Errorf("dlq: the redriver answered for %d of %d messages", len(errs), len(batch))
			errs = make([]error, len(batch))
			for i := range errs {
				errs[i] = err
			}
		}
		p.errs = errs
		return p
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(m.publishers, len(batch)) {
		wg.Go(func() {
			for i := range next {
				p.errs[i] = m.publishOne(ctx, &batch[i])
			}
		})
	}
	for i := range batch {
		next <- i
	}
	close(next)
	wg.Wait()
	return p
}

// publishOne contains a panic of the redriver: the run's process serves others too.
func (m *Manager) publishOne(ctx context.Context, out *outgoing) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("dlq: the redriver panicked: %v", r)
		}
	}()
	if ctx.Err() != nil {
		return errors.New("dlq: not published: the time for its batch was over")
	}
	return m.redriver.Reschedule(ctx, out.origin, out.message, 0)
}

// address is where a claimed entry's message goes.
func (m *Manager) address(run *Run, e *Entry) envelope.Origin {
	target, redirected := m.targets[run.Spec.Target]
	if run.Spec.Target == "" || !redirected {
		return e.Origin
	}
	if target.Key == nil {
		target.Key = e.Origin.Key
	}
	return target
}
