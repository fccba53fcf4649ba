package collector

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/internal/wait"
)

// SourceStats is the state of a source.
type SourceStats struct {
	Broker, Topic string
	// Subscribed means that messages can arrive now.
	Subscribed bool
	// Collected counts messages stored and acked, GivenBack those nacked because the sink did not accept them in time.
	Collected, GivenBack int64
	// Held counts messages that wait for the sink now.
	Held int64
	// LastCollected is when the last one was stored; zero if none was.
	LastCollected time.Time
	// Err is the current error of the subscription or the sink; empty without one.
	Err string
}

// reader collects from one source.
type reader struct {
	collector *Collector
	source    Source
	log       *slog.Logger

	mu    sync.Mutex // guards state
	state SourceStats
}

func (r *reader) stats() SourceStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.Broker, s.Topic = r.source.Broker, r.source.Topic
	return s
}

func (r *reader) note(change func(*SourceStats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

// run subscribes, repeatedly if necessary, and returns when ctx has ended and all messages are settled.
func (r *reader) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := r.consume(ctx)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the subscription ended on its own")
		}
		r.note(func(s *SourceStats) { s.Err = err.Error() })
		if time.Since(began) > r.collector.cfg.RetryMax { // it worked for a while
			failures = 0
		}
		failures++
		pause := r.collector.retries().After(failures)
		r.log.WarnContext(ctx, "dead letters cannot be read; the subscription is retried", "pause", pause, "error", err)
		_ = wait.For(ctx, pause)
	}
	r.note(func(s *SourceStats) { s.Subscribed = false })
}

// consume is one subscription, from its first message until the last is settled.
func (r *reader) consume(ctx context.Context) error {
	messages, err := r.source.Subscriber.Subscribe(ctx, r.source.Topic)
	if err != nil {
		return err
	}
	r.note(func(s *SourceStats) { s.Subscribed, s.Err = true, "" })
	r.log.InfoContext(ctx, "collecting dead letters")
	var handling sync.WaitGroup
	defer handling.Wait()
	defer r.note(func(s *SourceStats) { s.Subscribed = false })
	for m := range messages {
		// The subscriber bounds how many there are at once.
		handling.Go(func() { r.collect(ctx, m) })
	}
	return nil
}

// collect settles one message.
func (r *reader) collect(ctx context.Context, m *message.Message) {
	letter := r.collector.read(&r.source, m) //nolint:contextcheck // pure; the message has a separate context
	attrs := []any{"message_id", letter.Message.UUID, "from_topic", letter.Origin.Topic}
	// The message's own context ends when the subscription is lost. Finishing is still useful: the store recognizes the
	// message when it is delivered a second time.
	work := context.WithoutCancel(m.Context())
	deadline := time.Now().Add(r.collector.cfg.Hold)
	for n := 1; ; n++ {
		err := r.store(work, letter) //nolint:contextcheck // see work
		if err == nil {
			m.Ack()
			r.note(func(s *SourceStats) { s.Collected++; s.LastCollected, s.Err = time.Now(), "" })
			r.log.DebugContext(ctx, "dead letter collected", attrs...)
			return
		}
		r.note(func(s *SourceStats) { s.Err = err.Error() })
		pause := r.collector.retries().After(n)
		if ctx.Err() != nil || time.Now().Add(pause).After(deadline) {
			r.note(func(s *SourceStats) { s.GivenBack++ })
			r.log.ErrorContext(ctx, "dead letter returned to the broker: it could not be stored", append(attrs, "error", err)...)
			m.Nack()
			return
		}
		r.log.WarnContext(ctx, "dead letter held: it cannot be stored", append(attrs, "pause", pause, "error", err)...)
		r.note(func(s *SourceStats) { s.Held++ })
		_ = wait.For(ctx, pause)
		r.note(func(s *SourceStats) { s.Held-- })
	}
}

func (r *reader) store(ctx context.Context, letter *deadLetter) error {
	ctx, cancel := context.WithTimeout(ctx, r.collector.cfg.StoreTimeout)
	defer cancel()
	return r.collector.cfg.Sink.DeadLetter(ctx, letter)
}

// retries has the pauses between attempts to subscribe, and to store.
func (c *Collector) retries() wait.Backoff {
	return wait.Backoff{First: c.cfg.RetryMin, Longest: c.cfg.RetryMax}
}
