package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// admit reports whether h is for the handler. Otherwise it is settled, or parked and sent to ready when it may run.
func (s *subscription) admit(h *delivery) bool {
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
		s.background.Go(func() { // it is not retried: its count of attempts may be in the part that cannot be read
			s.deadLetterUnhandled(h, &envelope.DeadLetter{
				Message: h.Message, Reason: envelope.ReasonMalformed, Origin: h.Origin, At: time.Now(),
				Err: envelope.Error{Message: h.Malformed, Code: "malformed"},
			})
		})
		return false
	case earlier != nil && h.NearLimit:
		s.background.Go(func() { s.refresh(h) })
		return false
	case earlier != nil:
		s.background.Go(func() { s.await(h, earlier) })
		return false
	case h.Rest > s.b.traits.HoldLimit:
		s.background.Go(func() { s.republishRest(h) })
		return false
	}
	return s.admitDue(h)
}

// admitDue is admit for deliveries that are due, or nearly.
func (s *subscription) admitDue(h *delivery) bool {
	rest := h.Rest
	if s.holdsNacked && s.memory.anyNacked() {
		rest = max(rest, s.memory.pausing(h.stageName()))
	}
	switch {
	case rest > 0:
		h.Rest = 0
		s.background.Go(func() {
			if s.sleep(h, rest) && s.admitDue(h) {
				s.enter(h)
			}
		})
	case s.suspects.divert(h):
	case h.NearLimit:
		s.background.Go(func() { s.refresh(h) })
	default:
		return true
	}
	return false
}

// refresh publishes h again, behind the others, before the broker gives it up for being delivered too often, which was
// not its handler's fault. As long as that fails it runs in place.
func (s *subscription) refresh(h *delivery) {
	h.NearLimit = false
	s.memory.hold(h)
	err := s.publishAgain(context.Background(), h, 0)
	if s.replaced(h, err) {
		return
	}
	s.b.warn("a message that was delivered often cannot be published again and is held", err,
		"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid)
	if s.sleep(h, 0) && s.admit(h) {
		s.enter(h)
	}
}

// deadLetterUnhandled dead-letters h before it reaches its handler, and retries until the subscription stops.
func (s *subscription) deadLetterUnhandled(h *delivery, letter *envelope.DeadLetter) {
	b := s.b
	for n := 1; ; n++ {
		err := keepLetter(context.Background(), b.cfg, letter, b.DeadLetter)
		if err == nil {
			//nolint:sloglint // the sentence is a constant
			b.cfg.Logger.Error(b.traits.Name+": message dead-lettered before its handler",
				"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid, "reason", letter.Err.Message)
			h.settle(driver.Ack, 0)
			return
		}
		if n == 1 {
			b.warn("a message cannot be dead-lettered before its handler and is held", err,
				"topic", s.q.Topic, "message_id", h.uuid)
		}
		s.widen(h)
		if !s.sleep(h, republishing.Spread(n)) {
			return
		}
	}
}

// await waits for the handler that has the message, from an ended session or from another copy, and applies its answer
// to h: otherwise a handler that takes longer than the broker waits would run again and again.
func (s *subscription) await(h *delivery, answered <-chan struct{}) {
	select {
	case <-answered:
	case <-s.stopping.Done():
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

// nacked redelivers h after a pause, which doubles with every delivery: a message that cannot be settled causes no hot
// loop. A nack during the drain is for another process and needs no pause. With direct it returns what its worker is to
// dispatch again.
func (s *subscription) nacked(h *delivery) *delivery {
	if s.stopping.Err() != nil {
		h.settle(driver.Release, 0)
		return nil
	}
	if s.b.traits.NackPause {
		h.settle(driver.Nack, s.nackPauses.After(h.Earlier+1))
		return nil
	}
	// Remember it for the next session: the message may be redelivered before its pause is over.
	pause := s.memory.nack(h.stageName(), func(times int) time.Duration {
		return s.nackPauses.After(max(times, h.nacks+1, h.Earlier+1))
	})
	next := h.repeat()
	if !s.direct {
		s.background.Go(func() { s.hold(next, pause) })
		return nil
	}
	if !s.sleep(next, pause) {
		return nil
	}
	return next
}

// hold keeps h unsettled for d, and then runs it. Others run in the meantime, even if the window is one message: a
// second nack in a row means that the message can be neither retried nor dead-lettered now.
func (s *subscription) hold(h *delivery, d time.Duration) {
	if h.nacks > 1 {
		s.widen(h)
	}
	if s.sleep(h, d) {
		s.enter(h)
	}
}

// sleep waits for d. It reports false if h is no longer in flight: released because the subscription stops, or lost.
func (s *subscription) sleep(h *delivery, d time.Duration) bool {
	select {
	case <-time.After(d):
		if !h.mayNotRun() { // both may be ready
			return true
		}
	case <-s.stopping.Done():
	case <-h.session.lost:
	}
	h.settle(driver.Release, 0)
	return false
}

// enter runs h in its turn.
func (s *subscription) enter(h *delivery) {
	if s.mayRun(h) {
		s.ready <- h // it has a slot in the window, so there is room here
	}
}

// republishing paces attempts to publish messages in flight, and to record that a suspect begins.
var republishing = wait.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// republishRest publishes a message that was dispatched early for the rest of its wait. As long as that fails, for
// example because the broker is short of memory, it is held; when it is due it runs in place.
func (s *subscription) republishRest(h *delivery) {
	due := time.Now().Add(h.Rest)
	s.memory.hold(h) // before publishing: a copy whose confirm is lost may arrive first
	for n := 1; ; n++ {
		rest := time.Until(due)
		if rest <= s.b.traits.HoldLimit {
			if h.Rest = max(rest, 0); s.admitDue(h) {
				s.enter(h)
			}
			return
		}
		err := s.tryRepublishRest(h, rest)
		if s.replaced(h, err) {
			return
		}
		if n == 1 {
			s.b.warn("a waiting message cannot be published for the rest of its wait and is held", err,
				"topic", s.q.Topic, "queue", s.q.Names.Queue, "message_id", h.uuid)
		}
		s.widen(h)
		if !s.sleep(h, min(republishing.Spread(n), time.Until(due))) {
			return
		}
	}
}

// slow is how long a publication may take before another delivery gets its slot in the window.
const slow = 500 * time.Millisecond

// tryRepublishRest publishes h for the rest of its wait, and gives up before that ends: a missing answer must not make
// it late.
func (s *subscription) tryRepublishRest(h *delivery, rest time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), rest)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- s.publishAgain(ctx, h, rest) }()
	patience := slow
	if h.session.overflow.Load() > 0 { // others have already found the broker slow
		patience = s.b.traits.HoldLimit
	}
	select {
	case err := <-answer:
		return err
	case <-time.After(patience):
		s.widen(h)
		return <-answer
	}
}

// maxOverflow bounds how many deliveries may be in flight beyond the window because they cannot be published.
const maxOverflow = 256

// widen lets the broker send another delivery while h waits.
func (s *subscription) widen(h *delivery) {
	w, ok := h.session.stream.(driver.Widener)
	if !ok || !h.hasSlot.Load() {
		return
	}
	s.resizing <- struct{}{}
	defer func() { <-s.resizing }()
	n := h.session.overflow.Add(1)
	if n > maxOverflow || h.session.changeWindow(w) != nil || !h.leaveWindow() { // no slot if its session has ended
		h.session.overflow.Add(-1)
		return
	}
	h.overflows = true
}

// narrow undoes widen in the current session, but not while a suspect has the turn, which may be one of an earlier
// session: RabbitMQ cancels a consumer for it, and counts a message that is on its way there as it counts a crash.
func (s *subscription) narrow() {
	s.resizing <- struct{}{}
	defer func() { <-s.resizing }()
	current := s.current.Load()
	if w, ok := current.stream.(driver.Widener); ok && !current.ended.Load() && !s.suspects.busy() {
		_ = current.changeWindow(w) // if it fails, the next session has the right window
	}
}

// changeWindow adds the overflow to the window. The caller holds sub.resizing: the last call must have the last number.
func (s *session) changeWindow(w driver.Widener) error {
	ctx, cancel := s.sub.b.within(context.Background(), s.sub.b.cfg.PublishTimeout)
	defer cancel()
	window := s.window + int(s.overflow.Load())
	return bounded(ctx, &s.sub.b.traits, func(ctx context.Context) error { return w.Widen(ctx, window) })
}

// publishAgain sends h to its own consumer once more, as the same stage.
func (s *subscription) publishAgain(
	ctx context.Context, h *delivery, rest time.Duration, extra ...driver.Header,
) error {
	o := driver.Outgoing{
		Message: h.Message, To: s.b.destination(driver.ToConsumer, h.Origin.Topic, h.Origin.Consumer), Origin: &h.Origin,
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

// replaced acks h if its publication has succeeded, and reports that. Otherwise it may have been stored nevertheless.
func (s *subscription) replaced(h *delivery, err error) bool {
	if err != nil {
		h.doubtful = true
		return false
	}
	h.moved = true
	h.settle(driver.Ack, 0)
	return true
}

func (h *delivery) isRetry() bool { return h.stage != "" && h.stage[:1] == retryStage }

// crashLetter returns the dead letter of m, which was delivered crashes times without an answer: no middleware gets to
// see it. m is not changed.
func crashLetter(m *message.Message, origin envelope.Origin, crashes, limit int, at time.Time) *envelope.DeadLetter {
	text := fmt.Sprintf("delivered %d times without an answer: its handler seems to kill the process (crash-limit %d)",
		crashes, limit)
	fault := envelope.Error{Message: text, Code: "crash"}
	dead := m
	if c, err := envelope.ReadControl(m); err == nil {
		dead = envelope.RecordFailure(m, envelope.Failure{
			Err: fault, Class: "crash", At: at, Retry: c.RetryCount + 1, Reason: envelope.ReasonCrash,
		})
	} // otherwise the body only claims to be an envelope, and its bytes stay unchanged
	return &envelope.DeadLetter{
		Message: dead, Reason: envelope.ReasonCrash, Err: fault, Rule: "crash-limit", Origin: origin, At: at,
	}
}

// keepLetter gives d to cfg.DeadLetters, and to queue, the broker's own dead letter queue, if there is no sink or it
// fails: late is better than a message that keeps killing processes.
func keepLetter(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter,
	queue func(context.Context, *envelope.DeadLetter) error,
) error {
	if cfg.DeadLetters == nil {
		return queue(ctx, d)
	}
	err := offerLetter(ctx, cfg, d)
	if err == nil {
		return nil
	}
	cfg.Logger.ErrorContext(ctx, "Config.DeadLetters did not take a dead letter, which goes to the dead letter queue",
		"broker", d.Origin.Broker, "topic", d.Origin.Topic, "consumer", d.Origin.Consumer, "message_id", d.Message.UUID,
		"error", err)
	return queue(ctx, d)
}

// offerLetter calls cfg.DeadLetters, at most for the publish timeout, with a copy that it may still use afterwards. It
// recovers its panics, which would kill the process once more.
func offerLetter(ctx context.Context, cfg brokers.Config, d *envelope.DeadLetter) error {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.PublishTimeout,
		fmt.Errorf("no answer within %s: %w", cfg.PublishTimeout, context.DeadlineExceeded))
	defer cancel()
	mine := *d
	mine.Message = d.Message.Copy()
	answer := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				answer <- fmt.Errorf("panic: %v", r)
			}
		}()
		answer <- cfg.DeadLetters(ctx, &mine)
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
