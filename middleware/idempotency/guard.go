package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// BusyError reports that another owner is handling the message.
type BusyError struct {
	Key Key
	// Remaining is how long the other owner's lease lasts.
	Remaining time.Duration
}

// Error implements error.
func (e *BusyError) Error() string {
	return fmt.Sprintf("message %s is being handled by another worker of %s", e.Key.MessageID, e.Key.Consumer)
}

// Retryable makes classifiers retry the message.
func (e *BusyError) Retryable() bool { return true }

// lookAgain bounds the pause before a message that is being handled is tried again.
const lookAgain = 5 * time.Second

// settleTimeout bounds a guard's calls of the store after the handler, when the message's own context may have ended.
const settleTimeout = 5 * time.Second

// Guard runs handlers once per message. It is safe for concurrent use and needs no Close.
type Guard struct{ cfg Config }

// New creates a guard. The error lists every fault of the configuration.
func New(cfg Config) (*Guard, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return &Guard{cfg: cfg}, nil
}

// Middleware wraps h in the guard.
func (g *Guard) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) ([]*message.Message, error) {
		ctx := m.Context()
		key := Key{Consumer: g.cfg.Consumer, MessageID: g.cfg.ID(m)}
		if key.Consumer == "" {
			key.Consumer = message.HandlerNameFromCtx(ctx)
		}
		if key.MessageID == "" {
			g.cfg.Logger.WarnContext(ctx, "idempotency: a message without id runs unguarded", "consumer", key.Consumer)
			return h(m)
		}
		claim := &Claim{Key: key, Owner: rand.Int64(), Retention: g.cfg.Retention, digest: digest(m)} //nolint:gosec // G404: keeps no secret
		record, err := g.claim(ctx, claim)
		if err != nil {
			return nil, fmt.Errorf("idempotency: claim %s: %w", key.MessageID, err)
		}
		switch record.State {
		case Done:
			g.cfg.Logger.InfoContext(ctx, "idempotency: duplicate of a handled message", "consumer", key.Consumer, "message_id",
				key.MessageID)
			return decode(record.Outcome)
		case Busy:
			return nil, g.cfg.Busy(&BusyError{Key: key, Remaining: record.Remaining}, min(record.Remaining, lookAgain))
		case Claimed:
		}
		return g.run(h, m, claim)
	}
}

// claim claims a message. If a message with the same id but different content is done, it is not this one: ids start
// over in a recreated topic or a second cluster. Then the message gets a separate key.
func (g *Guard) claim(ctx context.Context, c *Claim) (Record, error) {
	record, err := g.cfg.Store.Claim(ctx, c.Key, c.Owner, g.cfg.Lease)
	if err != nil || record.State != Done {
		return record, err
	}
	if of, _ := split(record.Outcome); of == nil || bytes.Equal(of, c.digest) {
		return record, nil
	}
	g.cfg.Logger.WarnContext(ctx, "idempotency: a different message with this id has been handled; this one is handled "+
		"too",
		"consumer", c.Key.Consumer, "message_id", c.Key.MessageID)
	c.Key = c.Key.another(c.digest)
	return g.cfg.Store.Claim(ctx, c.Key, c.Owner, g.cfg.Lease)
}

// run runs the handler under the claim and settles the claim, however the handler ends.
func (g *Guard) run(h message.HandlerFunc, m *message.Message, claim *Claim) (out []*message.Message, err error) {
	outer := m.Context()
	ctx, cancel := context.WithCancelCause(withClaim(outer, claim))
	m.SetContext(ctx)
	renewal := g.keep(ctx, cancel, claim)

	returned := false
	defer func() {
		renewal.stop()
		cancel(context.Canceled)
		m.SetContext(outer)
		if !returned || err != nil { // also a panic or runtime.Goexit
			g.release(outer, claim)
		}
	}()
	out, err = h(m)
	if err == nil {
		g.complete(outer, claim, out)
	}
	returned = true
	return out, err
}

// complete marks the message as done. The effect has happened: whatever fails here, an error would only make it happen
// again.
func (g *Guard) complete(ctx context.Context, claim *Claim, out []*message.Message) {
	if claim.completed(len(out)) {
		return
	}
	outcome, err := claim.Outcome(out...)
	if err == nil {
		err = g.settle(ctx, func(ctx context.Context) error {
			return g.cfg.Store.Complete(ctx, claim.Key, claim.Owner, outcome, g.cfg.Retention)
		})
	}
	if err != nil {
		g.cfg.Logger.ErrorContext(ctx, "idempotency: a handled message could not be marked; a duplicate would run again",
			"consumer", claim.Key.Consumer, "message_id", claim.Key.MessageID, "error", err)
	}
}

// release makes way for the retry.
func (g *Guard) release(ctx context.Context, claim *Claim) {
	err := g.settle(ctx, func(ctx context.Context) error { return g.cfg.Store.Release(ctx, claim.Key, claim.Owner) })
	if err != nil {
		g.cfg.Logger.WarnContext(ctx, "idempotency: a claim could not be released; the retry waits for the end of its lease",
			"consumer", claim.Key.Consumer, "message_id", claim.Key.MessageID, "error", err)
	}
}

// settle tries a change three times, on a context that does not end with the message's.
func (g *Guard) settle(ctx context.Context, change func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	pause := 50 * time.Millisecond
	for try := 1; ; try++ {
		err := change(ctx)
		if err == nil || try == 3 || errors.Is(err, ErrLost) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pause *= 4
	}
}
