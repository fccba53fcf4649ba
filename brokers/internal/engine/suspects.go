package engine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// A delivery that ended without an answer may have killed its process. That is evidence, not proof: everything that the
// process had in flight is counted, including after lost connections and restarts. So a message that was counted twice
// is published again with a mark, which restarts the broker's count. Marked messages wait for their turn, which counts
// for nothing; the one whose turn it is is published once more, with a mark that allows it to run, and runs while no
// other with that mark is in flight; unmarked messages continue. A count after that is all but certainly due to the one
// that ran; after as many of them as the crash limit leaves, it is dead-lettered. A stream that is a driver.Beginner
// counts only deliveries that had begun, which needs no mark.
const (
	suspectAfter = 2
	// gathering is how long the suspect that is to run waits for others that were prefetched with it, because another
	// process gave them their turns, so that they are not in flight when it runs.
	gathering = 100 * time.Millisecond
	// cooling is how long a suspect waits after another count, doubled each time, and how long the turn is kept
	// for one that was published to run here: another process may receive it.
	cooling = 5 * time.Second
	// runs ends the mark of a suspect that may run.
	runs = "!"
)

// suspects schedules the marked deliveries of a subscription.
type suspects struct {
	sub   *subscription
	limit int // 0: nothing is suspected

	mu       sync.Mutex
	turn     bool          // a suspect has the turn: it is being published to run, gathers, runs or pauses
	expected string        // the one published to run that has not arrived; empty if there is none
	expiry   *time.Timer   // ends the wait for it
	queue    []*delivery   // those that wait for their turn
	moving   int           // those that are being sent back to wait
	moved    chan struct{} // closed when moving is 0; nil unless a suspect waits for that
}

func (s *suspects) init(sub *subscription) {
	s.sub = sub
	if !sub.b.caps.DeliveryCount {
		return
	}
	s.limit = driver.DefaultCrashLimit
	if sub.b.declared(driver.CrashLimit().Name) {
		s.limit = sub.q.Params.Int(driver.CrashLimit().Name)
	}
}

// suspect is the state of a delivery that may have killed its process.
type suspect struct {
	evidence int
	toRun    bool // its mark allows it to run
	inPlace  bool // it needs no mark to run, or cannot be published
	turn     bool // it has the turn
}

func (s *suspect) mark() driver.Header {
	mark := driver.Header{Key: envelope.KeySuspect, Value: strconv.Itoa(s.evidence)}
	if s.toRun {
		mark.Value += runs
	}
	return mark
}

func parseSuspect(mark string, limit int) *suspect {
	text, toRun := strings.CutSuffix(mark, runs)
	before, err := strconv.Atoi(text)
	if err != nil || before < 0 || before > limit {
		return &suspect{} // not our mark
	}
	return &suspect{evidence: before, toRun: toRun}
}

// divert reports whether h is handled here, rather than free to run among the others.
func (s *suspects) divert(h *delivery) bool {
	mark, marked := h.Message.Metadata[envelope.KeySuspect]
	delete(h.Message.Metadata, envelope.KeySuspect)
	if s.limit == 0 || h.suspect != nil {
		return false
	}
	counted := h.Suspect
	if counted > 0 {
		counted = max(0, counted-h.sub.memory.survivedWith(h))
	}
	if h.session.beginner != nil {
		return s.divertExact(h, counted)
	}
	if !marked {
		if counted < suspectAfter {
			return false
		}
		h.suspect = &suspect{}
		s.sub.background.Go(func() { s.republish(h, 0) })
		return true
	}
	h.suspect = parseSuspect(mark, s.limit)
	switch {
	case h.suspect.toRun && counted > 0:
		h.suspect.evidence++ // it ran once; if more are counted, processes that had lost their connections let it run on
		h.suspect.toRun = false
		if h.suspect.evidence >= max(1, s.limit-suspectAfter) {
			s.deadLetterKiller(h, suspectAfter+h.suspect.evidence)
			return true
		}
		// A fault that takes processes down for a minute, one after the other, must not incriminate the messages that happen
		// to run in them.
		s.sub.background.Go(func() { s.republish(h, cooling<<h.suspect.evidence) })
		return true
	case h.NearLimit:
		h.suspect.toRun = false
		s.sub.background.Go(func() { s.republish(h, 0) })
		return true
	}
	s.schedule(h)
	return true
}

// divertExact is divert for brokers that count only deliveries that had begun.
func (s *suspects) divertExact(h *delivery, counted int) bool {
	switch {
	case counted == 0:
		return false
	case counted >= s.limit:
		s.deadLetterKiller(h, counted)
		return true
	}
	h.suspect = &suspect{evidence: counted, inPlace: true}
	if counted < suspectAfter || s.sub.q.Concurrency == 1 { // with one worker everything runs alone, and in order
		return false
	}
	s.schedule(h)
	return true
}

// deadLetterKiller dead-letters h for killing its process.
func (s *suspects) deadLetterKiller(h *delivery, counted int) {
	s.sub.background.Go(func() {
		s.sub.deadLetterUnhandled(h,
			crashLetter(h.Message, h.Origin, counted, s.limit, time.Now()))
	})
}

// disarm takes back the permission to run of a suspect that is being released: the broker counts its return, and the
// next process would take that for a crash. It reports whether h is published again instead.
func (s *suspects) disarm(h *delivery) bool {
	if s.limit == 0 || isClosed(h.session.lost) {
		return false
	}
	if h.suspect == nil && h.Suspect == 0 && !h.handed {
		if mark, marked := h.Message.Metadata[envelope.KeySuspect]; marked {
			delete(h.Message.Metadata, envelope.KeySuspect)
			h.suspect = parseSuspect(mark, s.limit)
		}
	}
	if h.suspect == nil || !h.suspect.toRun {
		return false
	}
	h.suspect.toRun = false
	if h.handed {
		h.restore()
	}
	s.sub.background.Go(func() {
		if !s.tryRepublish(h, 0) {
			h.settle(driver.Release, 0)
		}
	})
	return true
}

// republish publishes h again with its mark, and acks it. If that fails it runs in place, in its turn.
func (s *suspects) republish(h *delivery, d time.Duration) {
	if !s.tryRepublish(h, d) {
		h.suspect.inPlace = true
		s.schedule(h)
	}
}

// tryRepublish publishes h again with its mark, and acks it. It reports whether that succeeded.
func (s *suspects) tryRepublish(h *delivery, d time.Duration) bool {
	if isClosed(h.session.lost) { // it is redelivered
		h.settle(driver.Release, 0)
		return true
	}
	err := s.sub.publishAgain(context.Background(), h, min(d, s.sub.b.caps.MaxDelay), h.suspect.mark())
	if s.sub.replaced(h, err) {
		return true
	}
	s.sub.b.warn("a message that may have killed its process cannot be published again and is held", err,
		"topic", s.sub.q.Topic, "message_id", h.uuid)
	return false
}

// schedule gives h the turn, or lets it wait: here, unless its mark gives it the next run, which counts for it.
func (s *suspects) schedule(h *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.turn, h.suspect.toRun && s.expected == h.key():
		s.giveTurn(h)
	case h.suspect.toRun && !h.suspect.inPlace:
		h.suspect.toRun = false
		s.moving++
		s.sub.background.Go(func() {
			s.republish(h, 0)
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.moving--; s.moving == 0 && s.moved != nil {
				close(s.moved)
				s.moved = nil
			}
		})
	default:
		s.sub.background.Go(func() { s.wait(h) })
	}
}

// wait keeps h until its turn. Others get its slot in the window in the meantime.
func (s *suspects) wait(h *delivery) {
	s.sub.widen(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queue = append(s.queue, h); !s.turn {
		s.advance()
	}
}

// key identifies h among suspects, across its publications.
func (h *delivery) key() string { return h.stage + "\x00" + h.uuid }

// giveTurn gives h the turn. The caller holds mu.
func (s *suspects) giveTurn(h *delivery) {
	s.turn, h.suspect.turn = true, true
	if s.expected != "" {
		s.expiry.Stop()
		s.expected = ""
	}
	s.sub.background.Go(func() { s.run(h) })
}

// run lets h run once no other suspect that may run is in flight.
func (s *suspects) run(h *delivery) {
	switch {
	case !s.sub.sleep(h, 0):
		return
	case h.suspect.inPlace:
	case !h.suspect.toRun:
		h.suspect.toRun = true
		s.sub.resizing <- struct{}{}
		s.expect(h) // before publishing: it may arrive before the confirm
		<-s.sub.resizing
		if s.tryRepublish(h, 0) {
			return
		}
		h.suspect.toRun, h.suspect.inPlace, h.suspect.turn = false, true, s.forget(h.key(), false)
		if !h.suspect.turn { // it was stored nevertheless, and has arrived
			s.schedule(h)
			return
		}
	default:
		if !s.sub.sleep(h, gathering) {
			return
		}
		s.mu.Lock()
		var moved chan struct{}
		if s.moving > 0 {
			if s.moved == nil {
				s.moved = make(chan struct{})
			}
			moved = s.moved
		}
		s.mu.Unlock()
		if moved != nil {
			<-moved // bounded by the publish timeout
		}
	}
	s.sub.enter(h)
}

// expect keeps the turn of h for a while for its publication that may run.
func (s *suspects) expect(h *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.suspect.turn = false // passed on
	expected := h.key()
	s.expected = expected
	s.expiry = time.AfterFunc(s.sub.b.cfg.PublishTimeout+cooling, func() {
		if s.forget(expected, true) {
			s.sub.narrow()
		}
	})
}

// forget ends expect, and with pass gives the turn to another. It reports false if it has already ended.
func (s *suspects) forget(expected string, pass bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expected != expected {
		return false
	}
	s.expiry.Stop()
	s.expected = ""
	if pass {
		s.turn = false
		s.advance()
	}
	return true
}

// done ends the turn of h once the broker knows its answer: if the next one kills the process, h must not be counted
// again.
func (s *suspects) done(h *delivery) {
	if h.suspect == nil || !h.suspect.turn {
		return
	}
	s.mu.Lock()
	s.turn = false
	s.advance()
	s.mu.Unlock()
	s.sub.narrow()
}

// busy reports whether a suspect has the turn.
func (s *suspects) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn
}

// advance gives the turn to the next one waiting here. The caller holds mu.
func (s *suspects) advance() {
	if s.turn || len(s.queue) == 0 || s.sub.stopping.Err() != nil { // releaseWaiting releases them
		return
	}
	next := s.queue[0]
	s.queue = s.queue[1:]
	s.giveTurn(next)
}

// releaseWaiting releases the suspects waiting here that may not run.
func (s *suspects) releaseWaiting() {
	s.mu.Lock()
	var back, left []*delivery
	for _, h := range s.queue {
		if h.mayNotRun() {
			back = append(back, h)
		} else {
			left = append(left, h)
		}
	}
	s.queue = left
	s.mu.Unlock()
	for _, h := range back {
		h.settle(driver.Release, 0)
	}
}

// begin records that the handler of a suspect begins, if the broker supports it. It reports false if h must not be
// dispatched now.
func (s *suspects) begin(h *delivery) bool {
	if h.suspect == nil || h.session.beginner == nil {
		return true
	}
	b := s.sub.b
	for n := 1; ; n++ {
		ctx, cancel := b.within(context.Background(), b.cfg.PublishTimeout)
		err := bounded(ctx, &b.traits, func(ctx context.Context) error { return h.session.beginner.Begin(ctx, &h.Delivery) })
		cancel()
		if err == nil {
			return true
		}
		if errors.Is(err, driver.ErrLost) {
			h.settle(driver.Release, 0)
			return false
		}
		b.warn("a message that may have killed its process waits for the broker", err,
			"topic", s.sub.q.Topic, "message_id", h.uuid)
		if !s.sub.sleep(h, republishing.After(n)) {
			return false
		}
	}
}
