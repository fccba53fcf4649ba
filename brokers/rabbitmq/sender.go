package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/wait"
)

// sender publishes with confirms on one channel, and after losing it repeats publications in flight on a new one. It is
// safe for concurrent use. For 64 callers a second, third and fourth channel gained nothing certain and cost 6 to 17 %
// more processor time per message (docs/performance.md).
type sender struct {
	link    *connection
	channel atomic.Pointer[confirmChannel]
	turn    turn // to open a channel
}

func newSender(l *connection) *sender { return &sender{link: l, turn: newTurn()} }

// turn is a mutex that can be awaited along with a context: to send to it locks it, to receive from it unlocks it.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// refusals is how often a publication refused by the broker is retried. A busy broker refuses publications to a quorum
// queue that was declared a moment ago.
const refusals = 3

// sendEach publishes batch in order and returns when the broker has confirmed or refused all of it, with an error for
// each publication, nil for those that are confirmed. It waits out a lost connection, and repeats publications that
// were not confirmed when it broke, until ctx ends.
func (s *sender) sendEach(ctx context.Context, batch []outgoing) []error {
	if len(batch) == 0 {
		return nil
	}
	faults := make([]error, len(batch))
	todo := make([]int, len(batch)) // indexes of unsettled publications
	for i := range todo {
		todo[i] = i
	}
	for round := 0; ; round++ {
		todo = s.round(ctx, batch, todo, faults, round < refusals)
		if len(todo) == 0 {
			return faults
		}
		if wait.For(ctx, pause(round)) != nil {
			for _, i := range todo {
				faults[i] = batch[i].unconfirmed(ctx)
			}
			return faults
		}
	}
}

// round publishes those of batch that todo lists on one channel and records the error of each in faults. It returns
// those to be published again, because the channel was lost before the confirm or, with again, because the broker
// refused them.
func (s *sender) round(ctx context.Context, batch []outgoing, todo []int, faults []error, again bool) (lost []int) {
	cc, err := s.open(ctx)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, brokers.ErrClosed) {
			return todo
		}
		for _, i := range todo {
			faults[i] = err
		}
		return nil
	}
	note := func(i int, err error) {
		if errors.Is(err, errConnectionLost) || again && errors.Is(err, ErrRefused) {
			lost = append(lost, i)
		} else {
			faults[i] = err
		}
	}
	flights := make([]*flight, 0, min(len(todo), window))
	settleFirst := func() bool {
		if len(flights) == 0 {
			return false
		}
		f := flights[0]
		flights = flights[1:]
		note(f.at, cc.settle(ctx, f))
		return true
	}
	for _, i := range todo {
		f, err := cc.post(ctx, &batch[i], settleFirst)
		if err != nil {
			note(i, err)
			continue
		}
		f.at = i
		flights = append(flights, f)
	}
	for settleFirst() {
	}
	return lost
}

// open returns the channel, opening a new one if necessary, once the broker accepts publications.
func (s *sender) open(ctx context.Context) (*confirmChannel, error) {
	if err := s.link.awaitRelief(ctx); err != nil {
		return nil, err
	}
	if cc := s.channel.Load(); cc != nil && cc.usable() {
		return cc, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbitmq: %w: %w", ErrUnconfirmed, context.Cause(ctx))
	}
	old := s.channel.Load()
	if old != nil && old.usable() {
		return old, nil
	}
	if old != nil && !old.ch.IsClosed() {
		// Its confirms are missing. Its end releases the callers that wait on it, and they publish again on the new one.
		s.link.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			_ = call(ctx, old.conn, old.ch.Close) // it is gone either way
		})
	}
	cc, err := openConfirmChannel(ctx, s.link)
	if err != nil {
		return nil, err
	}
	s.channel.Store(cc)
	return cc, nil
}
