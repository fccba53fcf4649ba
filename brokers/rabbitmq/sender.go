package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
)

// sender publishes with confirms on one channel, and again on a new channel what was under way when it was lost. It is
// safe for concurrent use. A second channel gains nothing: the more publications reach a quorum queue at once, the less
// each costs the broker.
type sender struct {
	link    *link
	timeout time.Duration
	lane    atomic.Pointer[lane]
	turn    chan struct{} // holds one token while nobody opens a lane

	mu     sync.Mutex // guards closed, and busy.Add against busy.Wait
	closed bool
	busy   sync.WaitGroup
}

func newSender(l *link, timeout time.Duration) *sender {
	s := &sender{link: l, timeout: timeout, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// send publishes batch in its order and returns when the broker has confirmed all of it. It waits out a lost
// connection, and repeats what was not confirmed when it broke, for as long as the timeout allows.
func (s *sender) send(ctx context.Context, batch ...outgoing) error {
	if len(batch) == 0 {
		return nil
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return brokers.ErrClosed
	}
	s.busy.Add(1)
	s.mu.Unlock()
	defer s.busy.Done()

	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("waited %s: %w", s.timeout, context.DeadlineExceeded))
	defer cancel()

	todo := make([]*outgoing, len(batch))
	for i := range batch {
		todo[i] = &batch[i]
	}
	var faults []error
	for round := 0; ; round++ {
		lost, err := s.round(ctx, todo, round < refusals)
		faults = append(faults, err)
		if len(lost) == 0 {
			return errors.Join(faults...)
		}
		todo = lost
		select {
		case <-time.After(pause(round)):
		case <-ctx.Done():
			return errors.Join(append(faults, unconfirmed(ctx, todo[0]))...)
		}
	}
}

// refusals is how often a publication is tried again that the broker refused. A quorum queue that was declared a moment
// ago refuses while the broker is busy.
const refusals = 3

// round publishes todo on one lane. It returns what is to be published again, because the lane was lost before the
// confirm, or with again because the broker refused it; and what is wrong with the rest.
func (s *sender) round(ctx context.Context, todo []*outgoing, again bool) (lost []*outgoing, err error) {
	if err := s.link.awaitRelief(ctx); err != nil {
		return nil, err
	}
	ln, err := s.open(ctx)
	if err != nil {
		if ctx.Err() != nil || errors.Is(err, brokers.ErrClosed) {
			return nil, err
		}
		return todo, nil
	}

	var faults []error
	note := func(o *outgoing, err error) {
		switch {
		case errors.Is(err, errConnectionLost), again && errors.Is(err, ErrRefused):
			lost = append(lost, o)
		case err != nil:
			faults = append(faults, err)
		}
	}
	flights := make([]*flight, 0, min(len(todo), window))
	settleFirst := func() {
		f := flights[0]
		flights = flights[1:]
		note(f.outgoing, ln.settle(ctx, f))
	}
	for _, o := range todo {
		if err := checkSize(o, ln.frameSize()); err != nil {
			faults = append(faults, fmt.Errorf("rabbitmq: publish to exchange %q with routing key %q: %w", o.exchange, o.key, err))
			continue
		}
		reserved := false
		for !reserved {
			var err error
			if reserved, err = ln.reserve(ctx, o, len(flights) == 0); err != nil {
				note(o, err)
				break
			}
			if !reserved {
				settleFirst()
			}
		}
		if !reserved {
			continue
		}
		f, err := ln.post(ctx, o)
		if err != nil {
			note(o, err)
			continue
		}
		flights = append(flights, f)
	}
	for len(flights) > 0 {
		settleFirst()
	}
	return lost, errors.Join(faults...)
}

// open returns the lane, a new one if need be.
func (s *sender) open(ctx context.Context) (*lane, error) {
	if ln := s.lane.Load(); ln != nil && ln.usable() {
		return ln, nil
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return nil, fmt.Errorf("rabbitmq: %w: %w", ErrUnconfirmed, context.Cause(ctx))
	}
	defer func() { s.turn <- struct{}{} }()
	old := s.lane.Load()
	if old != nil && old.usable() {
		return old, nil
	}
	if old != nil && !old.ch.IsClosed() {
		// Its confirms stay away. Whoever waits on it is released by its end, and publishes again on the new one.
		s.busy.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			old.close(ctx)
		})
	}
	ln, err := openLane(ctx, s.link)
	if err != nil {
		return nil, err
	}
	s.lane.Store(ln)
	return ln, nil
}

// close waits for publishes that are under way, which the timeout bounds, and closes the lanes.
func (s *sender) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.busy.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if ln := s.lane.Load(); ln != nil {
		ln.close(ctx)
	}
}
