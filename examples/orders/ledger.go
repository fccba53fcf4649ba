package main

import (
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
)

// state is the state of a message in the ledger of one handler.
type state string

const (
	queued    state = "queued" // published, not seen yet
	running   state = "running"
	waiting   state = "waiting" // for a retry
	processed state = "processed"
	dead      state = "dead"
	skipped   state = "skipped"
)

func (s state) final() bool { return s == processed || s == dead || s == skipped }

// line is the ledger's line about one message at one handler.
type line struct {
	state   state
	started int // the highest attempt that has started
	decided int // the highest attempt that ended in a hook
}

// ledger tracks every message through every handler, with the reports of the handlers and the pipeline's hooks. It does
// not trust the pipeline: a message that is lost stays queued or running forever, and one that ends in two ways is
// reported. Safe for concurrent use.
type ledger struct {
	mu       sync.Mutex
	handlers []string
	lines    map[string]map[string]*line // handler, message id
	open     int                         // messages that have not ended
	retries  int
	changes  int
	faults   []string
	settled  chan struct{} // closed when open falls to 0 after seal
	sealed   bool
	stopped  bool // by the user, before everything was delivered
}

func newLedger(handlers ...string) *ledger {
	l := &ledger{handlers: handlers, lines: map[string]map[string]*line{}, settled: make(chan struct{})}
	for _, h := range handlers {
		l.lines[h] = map[string]*line{}
	}
	return l
}

// publish records that a message is about to be published to handler.
func (l *ledger) publish(handler, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.lines[handler][id]; !known {
		l.lines[handler][id] = &line{state: queued}
		l.open++
		l.changes++
	}
}

// start records that an attempt begins.
func (l *ledger) start(handler, id string, attempt int) {
	l.update(handler, id, func(ln *line) {
		if attempt > ln.started && !ln.state.final() {
			ln.started, ln.state = attempt, running
		}
	})
}

// retry records that attempt failed and another one is due. The next attempt may have started before this is called.
func (l *ledger) retry(handler, id string, attempt int) {
	l.update(handler, id, func(ln *line) {
		l.retries++
		ln.decided = max(ln.decided, attempt)
		if ln.started <= attempt && !ln.state.final() {
			ln.state = waiting
		}
	})
}

// end records that the message was dead-lettered or skipped.
func (l *ledger) end(handler, id string, attempt int, to state) {
	l.update(handler, id, func(ln *line) {
		ln.decided = max(ln.decided, attempt)
		l.finalize(handler, id, ln, to)
	})
}

// finish records that attempt returned without an error: the message is processed unless a hook has recorded another
// outcome of this attempt.
func (l *ledger) finish(handler, id string, attempt int) {
	l.update(handler, id, func(ln *line) {
		if ln.decided < attempt {
			l.finalize(handler, id, ln, processed)
		}
	})
}

// update ignores messages of earlier runs, which a durable broker may still have.
func (l *ledger) update(handler, id string, change func(*line)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[handler][id]; ln != nil {
		l.changes++
		change(ln)
	}
}

// progress changes as long as messages make progress.
func (l *ledger) progress() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// finalize ignores a duplicate delivery with the same end; any other second end means that one message had two fates.
func (l *ledger) finalize(handler, id string, ln *line, to state) {
	if ln.state.final() {
		if ln.state != to {
			l.faults = append(l.faults, fmt.Sprintf("%s: message %s is %s and %s", handler, id, ln.state, to))
		}
		return
	}
	ln.state = to
	l.open--
	l.settle()
}

// seal records that nothing more will be published from outside; messages that handlers publish are in the ledger
// before their own message ends.
func (l *ledger) seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
	l.settle()
}

// interrupt records that the user stopped the job, so that undelivered messages count as waiting instead of lost.
func (l *ledger) interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}

func (l *ledger) interrupted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped
}

func (l *ledger) settle() {
	if l.sealed && l.open == 0 {
		l.sealed = false
		close(l.settled)
	}
}

type counts struct{ in, processed, dead, skipped, waiting, missing int }

func (l *ledger) counts(handler string) counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := counts{in: len(l.lines[handler])}
	for _, ln := range l.lines[handler] {
		switch ln.state {
		case processed:
			c.processed++
		case dead:
			c.dead++
		case skipped:
			c.skipped++
		case waiting:
			c.waiting++
		case queued, running:
			if l.stopped {
				c.waiting++ // still in the broker; the shutdown returned running messages
			} else {
				c.missing++
			}
		}
	}
	return c
}

// balance prints the ledger and reports whether in = processed + dead +
// skipped + waiting for every handler, each message with one fate.
func (l *ledger) balance(w io.Writer) bool {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "consumer\tin\t= processed\t+ dead\t+ skipped\t+ waiting\t ")
	balanced := true
	for _, h := range l.handlers {
		c := l.counts(h)
		verdict := "balanced"
		if c.missing != 0 {
			balanced = false
			verdict = fmt.Sprintf("DOES NOT BALANCE: %d missing", c.missing)
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t %s\n", h, c.in, c.processed, c.dead, c.skipped, c.waiting,
			verdict)
	}
	_ = table.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		balanced = false
		_, _ = fmt.Fprintln(w, "FAULT:", f)
	}
	return balanced
}

func (l *ledger) retryCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retries
}
