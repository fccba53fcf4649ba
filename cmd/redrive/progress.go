package main

import (
	"bytes"
	"context"
	"io"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"

	"github.com/redrive-go/redrive/internal/wait"
)

// bar shows people on stderr how far long work is, its rate and the time left. It shows nothing when stderr is not a
// terminal, or with --quiet. It is safe for concurrent use.
type bar struct {
	writer  progress.Writer // nil where nothing is shown
	tracker *progress.Tracker
	drawn   chan struct{} // closed when the last drawing is done
	ending  sync.Once
}

// startBar starts a bar; a total of 0 is not known. End it.
func (a *app) startBar(message string, total int64) *bar {
	if !isTerminal(a.err) || a.flags.quiet {
		return &bar{}
	}
	w := progress.NewWriter()
	w.SetOutputWriter(a.err)
	w.SetAutoStop(false)
	w.SetUpdateFrequency(200 * time.Millisecond)
	w.SetTerminalWidth(width(a.err)) // stdout may be a pipe; a line that wraps is not drawn over
	w.Style().Options.TimeInProgressPrecision = time.Second
	w.Style().Visibility.ETA, w.Style().Visibility.Speed = true, true
	if a.colourful(a.err) {
		w.Style().Colors = progress.StyleColorsExample
	}
	// A tracker that stops at its total is not drawn again, and the last message comes after the last number.
	b := &bar{
		writer: w, tracker: &progress.Tracker{Message: message, Total: total, AutoStopDisabled: true},
		drawn: make(chan struct{}),
	}
	w.AppendTracker(b.tracker)
	go func() {
		defer close(b.drawn)
		w.Render()
	}()
	for !w.IsRenderInProgress() { // a Stop that comes earlier would be lost
		time.Sleep(time.Millisecond)
	}
	return b
}

// set reports how much is done, of how much, and what is being done.
func (b *bar) set(done, total int64, message string) {
	if b.writer != nil {
		b.tracker.UpdateTotal(total)
		b.tracker.SetValue(done)
		b.tracker.UpdateMessage(message)
	}
}

func (b *bar) add(n int64) {
	if b.writer != nil && n > 0 {
		b.tracker.Increment(n)
	}
}

// end draws the bar for the last time. More than once is the same as once.
func (b *bar) end() {
	if b.writer == nil {
		return
	}
	b.ending.Do(func() {
		if b.tracker.PercentDone() >= 100 {
			b.tracker.MarkAsDone()
		}
		b.writer.Stop()
		<-b.drawn
	})
}

// countLines reports every line that is written to w.
func countLines(w io.Writer, add func(int64)) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		n, err := w.Write(p)
		add(int64(bytes.Count(p[:n], []byte("\n"))))
		return n, err
	})
}

// Write moves the bar with every byte.
func (b *bar) Write(p []byte) (int, error) {
	b.add(int64(len(p)))
	return len(p), nil
}

type writerFunc func(p []byte) (int, error)

// Write calls f.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// whileShrinking moves the bar as what a filter picks, n at first, becomes less while do changes it.
func (b *bar) whileShrinking(ctx context.Context, n int64, count func(context.Context) (int64, error),
	do func() error,
) error {
	defer b.end()
	if b.writer == nil {
		return do()
	}
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for wait.For(ctx, time.Second) == nil {
			if left, err := count(ctx); err == nil {
				b.tracker.SetValue(max(0, n-left))
			}
		}
	}()
	err := do()
	stop()
	<-watched
	return err
}
