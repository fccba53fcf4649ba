package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Claim is the right to handle a message, for stores that take part in the handler's transaction.
type Claim struct {
	Key       Key
	Owner     int64
	Retention time.Duration

	digest []byte

	mu     sync.Mutex
	marked bool
	kept   int
}

type claimKey struct{}

func withClaim(ctx context.Context, c *Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, c)
}

// ClaimFrom returns the claim under which the handler of ctx runs. It reports false outside of a [Guard].
func ClaimFrom(ctx context.Context) (*Claim, bool) {
	c, ok := ctx.Value(claimKey{}).(*Claim)
	return c, ok
}

// MarkCompleted records that the message has been marked as done in the handler's transaction, with that many produced
// messages.
func (c *Claim) MarkCompleted(produced int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked, c.kept = true, produced
}

// completed reports whether nothing is left to do after a handler that produced that many messages.
func (c *Claim) completed(produced int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.marked && c.kept >= produced
}

// renewal extends a claim's lease while its handler runs. A handler that finishes within a third of the lease costs
// only a timer.
type renewal struct {
	mu      sync.Mutex
	timer   *time.Timer
	expires time.Time // end of the lease, by this process's clock
	stopped bool
}

func (g *Guard) keep(ctx context.Context, cancel context.CancelCauseFunc, claim *Claim) *renewal {
	r := &renewal{expires: time.Now().Add(g.cfg.Lease)}
	interval := g.cfg.Lease / 3
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(interval, func() {
		began := time.Now()
		timeout, done := context.WithTimeout(context.WithoutCancel(ctx), interval)
		defer done()
		err := g.cfg.Store.Renew(timeout, claim.Key, claim.Owner, g.cfg.Lease)
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			r.expires = began.Add(g.cfg.Lease)
		}
		switch {
		case r.stopped:
		case !claim.completed(0) && (errors.Is(err, ErrLost) || !time.Now().Before(r.expires)):
			cancel(ErrLost) // another worker may be handling it: the handler is canceled
		default: // the error may be gone the next time
			r.timer.Reset(interval)
		}
	})
	return r
}

func (r *renewal) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.timer.Stop()
}
