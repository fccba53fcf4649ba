package redrive

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/internal/scheme"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// ReaderCounter is a [dlq.Redriver] that knows whether a consumer reads what it publishes to. It is optional: previews
// and runs find it by a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers now read the destination of a redrive to origin. It fails if that is not known,
	// with [ErrUnreachable] if a redrive would fail, such as when the broker is down or not configured. The context is
	// that of the message; see driver.CollectedFrom. Calls may be concurrent.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}

// ErrUnreachable is the error of a [ReaderCounter] if a redrive would fail. Previews and runs show it with its reason.
var ErrUnreachable = errors.New("a redrive would fail")

// TopicRedriver is a [dlq.Redriver] that cannot reach every consumer alone. It is optional, as ReaderCounter is.
type TopicRedriver interface {
	// ToTopic reports whether a redrive to origin is for every group that reads its topic. The context is as for Readers.
	ToTopic(ctx context.Context, origin envelope.Origin) bool
}

// Destination is where messages of a run go. Without a reader, redriven messages wait there, and their entries until
// the outcome timeout.
type Destination = wire.RunDestination

const (
	// readersTime is how long a preview and the start of a run wait for all brokers: with one that is slow or frozen the
	// number of readers is unknown, but nothing is held up.
	readersTime = 2 * time.Second
	// maxDestinations is how many destinations are looked up, and readersAtOnce how many at the same time.
	maxDestinations = 100
	readersAtOnce   = 8
)

// question is a destination as a parameter of a ReaderCounter.
type question struct {
	origin    envelope.Origin
	collected envelope.Collected
}

// destinations are where entries go, each once, with their bodies for where they were collected.
func (rn *Runner) destinations(ctx context.Context, run *Run, entries []*dlq.Entry) []Destination {
	var found []Destination
	var asked []question
	known := map[Destination]bool{}
	for _, e := range entries {
		q := question{origin: rn.address(run, e)}
		if e.Body != nil {
			q.collected = e.Body.Collected
		}
		to := &q.origin
		d := Destination{
			Broker: cmp.Or(q.collected.Broker, to.Broker), Topic: to.Topic, Consumer: to.Consumer, RedriveTo: to.RedriveTo,
			Readers: -1,
		}
		if !scheme.Same(to.Broker, e.Origin.Broker) { // a target elsewhere
			d.Broker = cmp.Or(to.Broker, d.Broker)
		}
		if r, ok := rn.cfg.Redriver.(TopicRedriver); ok {
			d.EveryGroup = r.ToTopic(driver.WithCollected(ctx, q.collected), q.origin)
		}
		if known[d] {
			continue
		}
		if len(found) == maxDestinations {
			break
		}
		known[d] = true
		found, asked = append(found, d), append(asked, q)
	}
	if counter, ok := rn.cfg.Redriver.(ReaderCounter); ok {
		countReaders(ctx, counter, asked, found)
	}
	return found
}

// countReaders sets Readers, or Unreachable, of each destination whose answer arrives in time. Later ones are dropped.
func countReaders(ctx context.Context, counter ReaderCounter, asked []question, found []Destination) {
	ctx, cancel := context.WithTimeout(ctx, readersTime)
	defer cancel()
	type answer struct {
		i, readers int
		err        error
	}
	next, answers := make(chan int, len(asked)), make(chan answer, len(asked))
	for i := range asked {
		next <- i
	}
	close(next)
	for range min(readersAtOnce, len(asked)) {
		go func() {
			for i := range next {
				a := answer{i: i}
				a.err = guarded.Call(func() (err error) {
					a.readers, err = counter.Readers(driver.WithCollected(ctx, asked[i].collected), asked[i].origin)
					return err
				})
				answers <- a
			}
		}()
	}
	for range asked {
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				found[a.i].Readers = a.readers
			case errors.Is(a.err, ErrUnreachable):
				found[a.i].Unreachable = a.err.Error()
			}
		case <-ctx.Done():
			return
		}
	}
}

// warn logs the warnings about a run's destinations, judging by its first entries.
func (rn *Runner) warn(ctx context.Context, run *Run, read []readItem) {
	entries := make([]*dlq.Entry, 0, len(read))
	for i := range read {
		if read[i].Entry != nil {
			entries = append(entries, read[i].Entry)
		}
	}
	for _, d := range rn.destinations(ctx, run, entries) {
		if text := d.Warning(); text != "" {
			rn.cfg.Logger.WarnContext(ctx, "redrive run: check a destination", slog.String("warning", text),
				slog.String("run", run.ID), slog.String("broker", d.Broker), slog.String("topic", d.Topic),
				slog.String("consumer", d.Consumer))
		}
	}
}
