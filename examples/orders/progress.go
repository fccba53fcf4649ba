package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/redrive-go/redrive/examples/internal/demo"
)

// progress is a line on a terminal with the state of the job. Elsewhere it prints nothing.
type progress struct {
	w      io.Writer
	ledger *demo.Ledger
	done   chan struct{}
	ended  chan struct{}
}

func newProgress(w io.Writer, l *demo.Ledger) *progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		w = nil
	}
	return &progress{w: w, ledger: l, done: make(chan struct{}), ended: make(chan struct{})}
}

func (p *progress) start() {
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for p.w != nil {
			c := p.ledger.Counts(consumerCharge)
			_, _ = fmt.Fprintf(p.w, "\r\x1b[K%d orders: %d processed, %d dead, %d skipped, %d waiting for a retry",
				c.In, c.Processed, c.Dead, c.Skipped, c.Waiting)
			select {
			case <-tick.C:
			case <-p.done:
				_, _ = fmt.Fprint(p.w, "\r\x1b[K")
				return
			}
		}
	}()
}

// stop clears the line.
func (p *progress) stop() {
	close(p.done)
	<-p.ended
}
