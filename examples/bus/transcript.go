package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// transcript prints a line for each attempt on the bus, and knows when every service has settled every event that it
// subscribes to. It is safe for concurrent use.
type transcript struct {
	project string
	speed   float64

	mu     sync.Mutex
	start  time.Time
	w      io.Writer
	order  []string           // services
	counts map[string]*counts // by service
	open   map[string]bool    // service and event id
	done   chan struct{}
	lines  int
}

type counts struct{ events, attempts, handled, skipped, failed, special int }

func newTranscript(w io.Writer, project string, speed float64) *transcript {
	return &transcript{
		w: w, project: project, speed: speed, start: time.Now(),
		counts: map[string]*counts{}, open: map[string]bool{}, done: make(chan struct{}),
	}
}

// expect records the events that are about to be published, and prints which services subscribe to them.
func (t *transcript) expect(services []service, events []Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range services {
		_, _ = fmt.Fprintf(t.w, "%s reads %s: %v\n", s.name, t.names(s.name).Queue, s.events)
		t.order, t.counts[s.name] = append(t.order, s.name), &counts{}
		for _, e := range events {
			for _, pattern := range s.events {
				if !t.open[s.name+" "+e.ID] && envelope.MatchEvent(pattern, e.Name) {
					t.open[s.name+" "+e.ID] = true
					t.counts[s.name].events++
				}
			}
		}
	}
	_, _ = fmt.Fprintln(t.w)
}

// begin sets the clock to 0.
func (t *transcript) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start = time.Now()
}

func (t *transcript) names(service string) brokers.Names {
	return brokers.ServiceBus(t.project).For("", service)
}

// line prints what service did with e. An outcome that is final closes the event for the service.
func (t *transcript) line(service string, e Event, tag middleware.Tag, text string, end func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines++
	key := service + " " + e.ID
	if end != nil {
		if !t.open[key] {
			return // of an earlier run, or a duplicate
		}
		delete(t.open, key)
		end(t.counts[service])
	}
	at := time.Duration(float64(time.Since(t.start)) * t.speed)
	_, _ = fmt.Fprintf(t.w, "T=%4.1f s  %-15s  %-15s %-5s  %-5s  %s\n", at.Seconds(), service, e.Name, e.About, tag, text)
	if len(t.open) == 0 && end != nil {
		close(t.done)
	}
}

// progress changes as long as events make progress.
func (t *transcript) progress() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines
}

// watch wraps the service's handler and prints its attempts.
func (t *transcript) watch(service string,
	handle func(context.Context, Event) error,
) func(context.Context, Event) error {
	return func(ctx context.Context, e Event) error {
		t.mu.Lock()
		t.counts[service].attempts++
		t.mu.Unlock()
		err := handle(ctx, e)
		if err == nil {
			attempt, _ := middleware.AttemptFrom(ctx)
			t.line(service, e, attempt.Tag, "handled", func(c *counts) { c.handled++ })
		}
		return err
	}
}

// hooks are called when the decision about a failed attempt is durable.
func (t *transcript) hooks(service string) middleware.Hooks {
	return middleware.Hooks{
		OnRetry: func(_ context.Context, p middleware.RetryParams) error {
			text := fmt.Sprintf("%v: again in %s", p.Decision.Err, p.Decision.Delay)
			t.line(service, eventOf(p.Message), p.Decision.Attempt.Tag, text, nil)
			return nil
		},
		OnSkip: func(_ context.Context, p middleware.SkipParams) error {
			t.line(service, eventOf(p.Message), p.Decision.Attempt.Tag, p.Decision.Err.Error()+": skipped",
				func(c *counts) { c.skipped++ })
			return nil
		},
		OnDeadLetter: func(_ context.Context, p middleware.DeadLetterParams) error {
			text := fmt.Sprintf("%s: to %s", p.DeadLetter.Err.Message, t.names(service).Dead)
			t.line(service, eventOf(p.DeadLetter.Message), p.Decision.Attempt.Tag, text, func(c *counts) { c.failed++ })
			return nil
		},
	}
}

// special takes messages that are not for the service's own code.
func (t *transcript) special(service, text string) message.NoPublishHandlerFunc {
	return func(m *message.Message) error {
		t.line(service, eventOf(m), "", text, func(c *counts) { c.special++ })
		return nil
	}
}

func eventOf(m *message.Message) Event {
	var e Event
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		e.About = err.Error()
	}
	return e
}

// report prints the totals and reports whether every event has ended.
func (t *transcript) report() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	table := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "\nservice\tevents\t= handled\t+ skipped\t+ failed\t+ system, debug\tattempts\t")
	for _, name := range t.order {
		c := t.counts[name]
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", name, c.events, c.handled, c.skipped, c.failed, c.special,
			c.attempts)
	}
	_ = table.Flush()
	if len(t.open) > 0 {
		_, _ = fmt.Fprintf(t.w, "\nDOES NOT BALANCE: %d events have not ended\n", len(t.open))
	}
	return len(t.open) == 0
}
