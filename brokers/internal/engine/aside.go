package engine

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/crash"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// admit reports whether h is for the handler. What is not is settled, or parked, and comes to ready when it may run.
func (s *subscription) admit(h *hand) bool {
	if h.replayed() {
		s.b.replays.Add(1)
		h.moved, h.skipped = true, true
		h.settle(driver.Ack, 0)
		return false
	}
	if s.direct {
		return true
	}
	earlier := s.memory.earlier(h)
	switch {
	case h.Malformed != "":
		s.aside.Go(func() { s.refuse(h) })
		return false
	case earlier != nil && h.NearLimit:
		s.aside.Go(func() { s.refresh(h) })
		return false
	case earlier != nil:
		s.aside.Go(func() { s.await(h, earlier) })
		return false
	case h.Rest > s.b.traits.HoldLimit:
		s.aside.Go(func() { s.moveOn(h) })
		return false
	}
	return s.admitDue(h)
}

// admitDue is admit for what is due, or nearly.
func (s *subscription) admitDue(h *hand) bool {
	rest := h.Rest
	if s.inPlace && s.memory.anyNacked() {
		rest = max(rest, s.memory.pausing(h.stageName()))
	}
	switch {
	case rest > 0:
		h.Rest = 0
		s.aside.Go(func() {
			if s.rest(h, rest) && s.admitDue(h) {
				s.enter(h)
			}
		})
	case s.suspects.divert(h):
	case h.NearLimit:
		s.aside.Go(func() { s.refresh(h) })
	default:
		return true
	}
	return false
}

// refresh publishes h again, behind the others, before the broker gives it up for being delivered too often, which was
// no fault of its handler. While that fails it runs in place.
func (s *subscription) refresh(h *hand) {
	h.NearLimit = false
	s.memory.hold(h)
	err := s.publishAgain(context.Background(), h, 0)
	if err == nil {
		h.moved = true
		h.settle(driver.Ack, 0)
		return
	}
	h.doubtful = true
	s.b.warn("a message that was delivered often cannot be published again, it is kept in hand", err,
		"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid)
	if s.rest(h, 0) && s.admit(h) {
		s.enter(h)
	}
}

// refuse dead-letters a message that cannot be read: how often it has been tried, and whether it has been delayed, may
// stand where nothing can be read.
func (s *subscription) refuse(h *hand) {
	s.deadLetterUnhandled(h, &envelope.DeadLetter{
		Message: h.Message, Reason: envelope.ReasonMalformed, Origin: h.Origin, At: time.Now(),
		Err: envelope.Error{Message: h.Malformed, Code: "malformed"},
	})
}

// deadLetterUnhandled dead-letters h before its handler has seen it, and tries until the subscription stops.
func (s *subscription) deadLetterUnhandled(h *hand, letter *envelope.DeadLetter) {
	b := s.b
	for n := 1; ; n++ {
		err := crash.Keep(context.Background(), b.cfg, letter, b.DeadLetter)
		if err == nil {
			//nolint:sloglint // the sentence is a constant
			b.cfg.Logger.Error(b.traits.Name+": message dead-lettered before its handler",
				"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid, "reason", letter.Err.Message)
			h.settle(driver.Ack, 0)
			return
		}
		if n == 1 {
			b.warn("a message cannot be dead-lettered before its handler, it is kept in hand", err,
				"topic", s.q.Topic, "message_id", h.uuid)
		}
		s.widen(h)
		if !s.rest(h, republishing.Spread(n)) {
			return
		}
	}
}

// await waits for the handler that has the message, since a session that has ended or from another copy, and lets its
// answer stand for h: a handler that takes longer than the broker waits would otherwise run again and again.
func (s *subscription) await(h *hand, answered <-chan struct{}) {
	select {
	case <-answered:
	case <-s.stop:
		h.settle(driver.Release, 0)
		return
	case <-h.session.lost:
		h.settle(driver.Release, 0)
		return
	}
	if s.admit(h) {
		s.enter(h)
	}
}

// nacked brings h back after a pause, which doubles with every delivery: a message that cannot be settled makes no hot
// loop. A nack during the drain is for another process, and needs none. With direct it returns what its worker is to
// hand out again.
func (s *subscription) nacked(h *hand) *hand {
	if isClosed(s.stop) {
		h.settle(driver.Release, 0)
		return nil
	}
	if s.b.traits.NackPause {
		h.settle(driver.Nack, s.nacking.After(h.Earlier+1))
		return nil
	}
	// The memory is for the next session: the message may be delivered anew before its pause is over.
	_, pause := s.memory.nack(h.stageName(), func(times int) time.Duration {
		return s.nacking.After(max(times, h.nacks+1, h.Earlier+1))
	})
	next := h.again()
	if !s.direct {
		s.aside.Go(func() { s.hold(next, pause) })
		return nil
	}
	if !s.rest(next, pause) {
		return nil
	}
	return next
}

// hold keeps h in hand for d, and lets it run then. Others run meanwhile, also where the window is one message: the
// second nack in a row is of a message that can be neither retried nor dead-lettered now.
func (s *subscription) hold(h *hand, d time.Duration) {
	if h.nacks > 1 {
		s.widen(h)
	}
	if s.rest(h, d) {
		s.enter(h)
	}
}

// rest waits for d. It reports false when h is out of hand: released, because the subscription stops, or lost.
func (s *subscription) rest(h *hand, d time.Duration) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		if s.stopping.Err() == nil && !isClosed(h.session.lost) { // both may be ready
			return true
		}
	case <-s.stop:
	case <-h.Revoked:
	case <-h.session.lost:
	}
	h.settle(driver.Release, 0)
	return false
}

// enter lets h run, in its turn.
func (s *subscription) enter(h *hand) {
	if s.mayRun(h) {
		s.ready <- h // it has a place in the window, and so there is one for it here
	}
}

// republishing paces attempts to publish what is in hand.
var republishing = wait.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// moveOn publishes a message that was handed out early for the rest of its wait. While that fails, as when the broker
// is short of memory, it is kept in hand; once its time has come it runs in place.
func (s *subscription) moveOn(h *hand) {
	due := time.Now().Add(h.Rest)
	s.memory.hold(h) // before it is published: a copy whose confirm does not come may arrive first
	for n := 1; ; n++ {
		rest := time.Until(due)
		if rest <= s.b.traits.HoldLimit {
			if h.Rest = max(rest, 0); s.admitDue(h) {
				s.enter(h)
			}
			return
		}
		err := s.tryMoveOn(h, rest)
		if err == nil {
			h.moved = true
			h.settle(driver.Ack, 0)
			return
		}
		h.doubtful = true
		if n == 1 {
			s.b.warn("a waiting message cannot be published for the rest of its wait, it is kept in hand", err,
				"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid)
		}
		s.widen(h)
		if !s.rest(h, min(republishing.Spread(n), time.Until(due))) {
			return
		}
	}
}

// slow is how long a publication may take before others are let into the window.
const slow = 500 * time.Millisecond

// tryMoveOn publishes h for its rest, and ends before that is over: it must not be late because an answer does not
// come.
func (s *subscription) tryMoveOn(h *hand, rest time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- s.publishAgain(ctx, h, rest) }()
	patience := slow
	if s.stuck.Load() > 0 { // others have found out already
		patience = s.b.traits.HoldLimit
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-answer:
		return err
	case <-timer.C:
		s.widen(h)
		return <-answer
	}
}

// maxStuck bounds how many deliveries may be in hand beyond the window because they cannot be published.
const maxStuck = 256

// widen lets the broker send another delivery while h waits in hand.
func (s *subscription) widen(h *hand) {
	w, ok := h.session.stream.(driver.Widener)
	if !ok || !h.windowed.Load() {
		return
	}
	n := s.stuck.Add(1)
	if n > maxStuck || s.changeWindow(w, n) != nil {
		s.stuck.Add(-1)
		return
	}
	if !h.leaveWindow() { // its session has ended
		s.stuck.Add(-1)
		return
	}
	h.stuck = true
}

// narrow ends widen.
func (s *subscription) narrow(h *hand) {
	h.stuck = false
	n := s.stuck.Add(-1)
	if w, ok := h.session.stream.(driver.Widener); ok && !h.session.ended.Load() {
		_ = s.changeWindow(w, n) // else the next session has the window that it should
	}
}

func (s *subscription) changeWindow(w driver.Widener, n int32) error {
	ctx, cancel := s.b.within(context.Background(), s.b.cfg.PublishTimeout)
	defer cancel()
	return bounded(ctx, &s.b.traits, func(ctx context.Context) error { return w.Widen(ctx, s.q.Window+int(n)) })
}

// publishAgain puts h in front of its own consumer once more, as the same stage.
func (s *subscription) publishAgain(ctx context.Context, h *hand, rest time.Duration, extra ...driver.Header) error {
	o := driver.Outgoing{
		Message: h.Message, To: s.b.to(driver.ToConsumer, h.Origin.Topic, h.Origin.Consumer), Origin: &h.Origin,
		First: !h.isRetry(), Extra: extra,
	}
	if h.stage != "" {
		o.Extra = append(o.Extra, driver.Header{Key: envelope.KeyStage, Value: h.stage})
	}
	if err := s.b.delay(&o, rest, time.Now()); err != nil {
		return err
	}
	return s.b.sender.sendOne(ctx, &o)
}

func (h *hand) isRetry() bool { return h.stage != "" && h.stage[:1] == retryStage }
