package redrive

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// BatchRedriver is a [Redriver] that publishes many messages in one call, which is faster than many concurrent calls.
// It is optional: a run finds it by a type assertion.
type BatchRedriver interface {
	dlq.Redriver
	// RescheduleAll puts each message in front of the consumer of its origin, now. It returns when the broker has
	// confirmed or refused every one, or the context has ended: one error per message, in order, nil for confirmed.
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

// RescheduleAll sends messages through r in one call when it is a [BatchRedriver], otherwise by concurrent calls. It
// returns one error per message, in order, nil for confirmed. A panic of r becomes an error.
func RescheduleAll(ctx context.Context, r dlq.Redriver, origins []envelope.Origin, messages []*message.Message,
	calls int,
) []error {
	if all, ok := r.(BatchRedriver); ok {
		return rescheduleBatch(ctx, all, origins, messages)
	}
	errs := make([]error, len(messages))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(max(1, calls), len(messages)) {
		wg.Go(func() {
			for i := range next {
				errs[i] = rescheduleOne(ctx, r, origins[i], messages[i])
			}
		})
	}
	for i := range messages {
		next <- i
	}
	close(next)
	wg.Wait()
	return errs
}

// rescheduleBatch makes sure that there is a result for each message.
func rescheduleBatch(ctx context.Context, r BatchRedriver, origins []envelope.Origin,
	messages []*message.Message,
) (errs []error) {
	failAll := func(err error) {
		errs = make([]error, len(messages))
		for i := range errs {
			errs[i] = err
		}
	}
	defer func() {
		if r := recover(); r != nil {
			failAll(fmt.Errorf("dlq: the redriver panicked: %v", r))
		}
	}()
	if errs = r.RescheduleAll(ctx, origins, messages); len(errs) != len(messages) {
		failAll(fmt.Errorf("dlq: the redriver answered for %d of %d messages", len(errs), len(messages)))
	}
	return errs
}

// rescheduleOne recovers a panic of the redriver: the run's process serves others, too.
func rescheduleOne(ctx context.Context, r dlq.Redriver, origin envelope.Origin, msg *message.Message) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("dlq: the redriver panicked: %v", r)
		}
	}()
	if ctx.Err() != nil {
		return errors.New("dlq: not published: the time for its batch was over")
	}
	return r.Reschedule(ctx, origin, msg, 0)
}

// address is the destination of a claimed entry's message.
func (rn *Runner) address(run *Run, e *dlq.Entry) envelope.Origin {
	target, redirected := rn.targets[run.Spec.Target]
	if run.Spec.Target == "" || !redirected {
		return e.Origin
	}
	if target.Key == nil {
		target.Key = e.Origin.Key
	}
	return target
}
