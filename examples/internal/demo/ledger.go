package demo

import (
	"context"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"

	"github.com/redrive-go/redrive/middleware"
)

// Ledger tracks every message at every handler until it ends, as an observer of the pipeline. A message that is lost
// never ends, and one that ends in two ways is reported. It is safe for concurrent use.
type Ledger struct {
	middleware.NopObserver

	mu       sync.Mutex
	handlers []string
	lines    map[string]map[string]*line // handler, message id
	open     int                         // messages that have not ended
	retries  int
	changes  int
	faults   []string
	settled  chan struct{} // closed when no message is open after Seal
	sealed   bool
	stopped  bool // by the user, before everything was delivered
}

// line is the ledger's line about one message at one handler.
type line struct {
	ended   middleware.Outcome // 0 until it has ended
	started int                // the latest attempt that has started
	waiting bool               // for a retry
}

// Counts are the messages of one handler.
type Counts struct{ In, Processed, Dead, Skipped, Waiting, Missing int }

// NewLedger returns an empty ledger of the router's handlers with these names.
func NewLedger(handlers ...string) *Ledger {
	l := &Ledger{handlers: handlers, lines: map[string]map[string]*line{}, settled: make(chan struct{})}
	for _, h := range handlers {
		l.lines[h] = map[string]*line{}
	}
	return l
}

// Expect records that a message is about to be published to handler.
func (l *Ledger) Expect(handler, id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines[handler][id] == nil {
		l.lines[handler][id] = &line{}
		l.open++
		l.changes++
	}
}

// Started implements [middleware.Observer].
func (l *Ledger) Started(ctx context.Context, e middleware.Started) context.Context {
	l.update(e.Delivery, func(ln *line) {
		ln.started, ln.waiting = max(ln.started, e.Attempt.Number), false
	})
	return ctx
}

// Finished implements [middleware.Observer]. The next attempt may have started before it is called.
func (l *Ledger) Finished(_ context.Context, e middleware.Finished) {
	l.update(e.Delivery, func(ln *line) {
		switch e.Outcome {
		case middleware.OutcomeRetry:
			l.retries++
			ln.waiting = ln.started <= e.Attempt.Number
		case middleware.OutcomeSuccess, middleware.OutcomeDeadLetter, middleware.OutcomeSkip:
			l.end(e.Delivery, ln, e.Outcome)
		default:
		}
	})
}

// update ignores messages of earlier runs, which a durable broker may still have.
func (l *Ledger) update(d *middleware.Delivery, change func(*line)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ln := l.lines[d.Handler][d.Attempt.MessageID]; ln != nil {
		l.changes++
		change(ln)
	}
}

// end ignores a duplicate delivery with the same end; any other second end means that one message had two fates.
func (l *Ledger) end(d *middleware.Delivery, ln *line, as middleware.Outcome) {
	switch ln.ended {
	case as:
	case 0:
		ln.ended = as
		l.open--
		l.settle()
	default:
		l.faults = append(l.faults, fmt.Sprintf("%s: message %s ended as %s and as %s", d.Handler, d.Attempt.MessageID,
			ln.ended, as))
	}
}

// Seal records that nothing more will be published from outside; messages that handlers publish are in the ledger
// before their own message ends.
func (l *Ledger) Seal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealed = true
	l.settle()
}

func (l *Ledger) settle() {
	if l.sealed && l.open == 0 {
		l.sealed = false
		close(l.settled)
	}
}

// Settled is closed when every message has ended and nothing more will be published.
func (l *Ledger) Settled() <-chan struct{} { return l.settled }

// Interrupt records that the user stopped the job, so that undelivered messages count as waiting instead of lost.
func (l *Ledger) Interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
}

// Progress changes as long as messages make progress.
func (l *Ledger) Progress() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// Retries returns the number of retries so far.
func (l *Ledger) Retries() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.retries
}

// Counts returns where the messages of a handler are.
func (l *Ledger) Counts(handler string) Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := Counts{In: len(l.lines[handler])}
	for _, ln := range l.lines[handler] {
		switch {
		case ln.ended == middleware.OutcomeSuccess:
			c.Processed++
		case ln.ended == middleware.OutcomeDeadLetter:
			c.Dead++
		case ln.ended == middleware.OutcomeSkip:
			c.Skipped++
		case ln.waiting || l.stopped: // still in the broker; the shutdown returned running messages
			c.Waiting++
		default:
			c.Missing++
		}
	}
	return c
}

// Balance prints the ledger and reports whether in = processed + dead + skipped + waiting for every handler, each
// message with one fate.
func (l *Ledger) Balance(w io.Writer) bool {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "consumer\tin\t= processed\t+ dead\t+ skipped\t+ waiting\t ")
	balanced := true
	for _, h := range l.handlers {
		c := l.Counts(h)
		verdict := "balanced"
		if c.Missing != 0 {
			balanced = false
			verdict = fmt.Sprintf("DOES NOT BALANCE: %d missing", c.Missing)
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t %s\n", h, c.In, c.Processed, c.Dead, c.Skipped, c.Waiting,
			verdict)
	}
	_ = table.Flush()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		balanced = false
		_, _ = fmt.Fprintln(w, "FAULT:", f)
	}
	if l.stopped {
		_, _ = fmt.Fprintln(w, "\ninterrupted: what is waiting stays with the broker (in memory it ends with this process)")
	}
	return balanced
}
