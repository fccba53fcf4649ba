package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/middleware"
)

// tally tracks each message until it ends, as an observer of the pipeline. A message that is lost never ends, and one
// with two ends is a fault. It is safe for concurrent use.
type tally struct {
	middleware.NopObserver
	mu      sync.Mutex
	fates   map[string]*fate // by message id
	open    int
	retries int
	changes int
	faults  []string
	sealed  bool
	done    chan struct{} // closed when all messages have been published and have ended
}

type fate struct {
	topic string
	ended middleware.Outcome // 0 until it has ended
}

func newTally() *tally { return &tally{fates: map[string]*fate{}, done: make(chan struct{})} }

// expect records that a message is about to be published.
func (t *tally) expect(topic, id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fates[id] = &fate{topic: topic}
	t.open++
	t.changes++
}

// seal records that no more messages will be published.
func (t *tally) seal() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sealed = true
	t.settle()
}

// Finished is called by the pipeline when an attempt has its outcome.
func (t *tally) Finished(_ context.Context, e middleware.Finished) {
	if e.Outcome == middleware.OutcomeSuccess {
		t.end(e.Attempt.MessageID, e.Outcome)
	}
}

// RetryScheduled is called by the pipeline when a retry is confirmed.
func (t *tally) RetryScheduled(context.Context, middleware.RetryScheduled) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retries++
	t.changes++
}

// progress changes as long as events make progress.
func (t *tally) progress() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changes
}

// DeadLettered is called by the pipeline when a dead letter is durable.
func (t *tally) DeadLettered(_ context.Context, e middleware.DeadLettered) {
	t.end(e.Attempt.MessageID, middleware.OutcomeDeadLetter)
}

// end ignores messages of earlier runs, which a durable broker may still have, and counts a duplicate once.
func (t *tally) end(id string, as middleware.Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fates[id]
	switch {
	case f == nil || f.ended == as:
	case f.ended != 0:
		t.faults = append(t.faults, fmt.Sprintf("message %s of %s ended as %s and as %s", id, f.topic, f.ended, as))
	default:
		f.ended = as
		t.open--
		t.changes++
		t.settle()
	}
}

func (t *tally) settle() {
	if t.sealed && t.open == 0 {
		t.sealed = false
		close(t.done)
	}
}

type counts struct{ in, processed, dead, missing int }

func (t *tally) counts(topic string) (c counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fates {
		if f.topic != topic {
			continue
		}
		c.in++
		switch f.ended {
		case middleware.OutcomeSuccess:
			c.processed++
		case middleware.OutcomeDeadLetter:
			c.dead++
		default:
			c.missing++
		}
	}
	return c
}
