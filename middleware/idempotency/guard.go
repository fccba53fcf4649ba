package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
)

// Defaults of a [Config].
const (
	DefaultLease     = time.Minute
	DefaultRetention = 7 * 24 * time.Hour
)

// Config configures a [Guard].
type Config struct {
	// Store records handled messages. Required.
	Store Store
	// Consumer is the first half of the keys. Defaults to the name of the router's handler, so that each handler of a
	// service runs a message once. Services that share a store and have handlers of the same name must set it.
	Consumer string
	// ID returns a message's id, or "" if it has none. Defaults to envelope.Identify.
	ID func(m *message.Message) string
	// Lease is how long a dead owner keeps a message. A handler may take longer, because its lease is renewed. Defaults to
	// one minute.
	Lease time.Duration
	// Retention is how long a message stays done. It must exceed the time in which a duplicate can arrive: the longest
	// retry schedule, and the age at which dead letters are redriven. Defaults to seven days.
	Retention time.Duration
	// Busy turns the error for a message that cannot be handled now, because another owner is handling it or the store
	// fails, and that should be tried again after d, into the handler's error. Defaults to [middleware.Defer], which
	// consumes no attempt: a killed worker keeps its messages for a lease, and the outage of a store may last as long,
	// which is more time than many retry schedules have.
	Busy func(err error, d time.Duration) error
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	c.Lease = cmp.Or(c.Lease, DefaultLease)
	c.Retention = cmp.Or(c.Retention, DefaultRetention)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.ID == nil {
		c.ID = envelope.Identify
	}
	if c.Busy == nil {
		c.Busy = middleware.Defer
	}
}

func (c *Config) validate() error {
	var faults []error
	if c.Store == nil {
		faults = append(faults, errors.New("config: Store is required"))
	}
	if c.Lease < 0 {
		faults = append(faults, fmt.Errorf("config: Lease %s must not be negative", c.Lease))
	}
	if c.Retention < 0 {
		faults = append(faults, fmt.Errorf("config: Retention %s must not be negative", c.Retention))
	}
	return errors.Join(faults...)
}

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

// lookAgain bounds the pause before a message that is being handled is tried again, and is the pause after a failure of
// the store.
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
		key := Key{Consumer: cmp.Or(g.cfg.Consumer, message.HandlerNameFromCtx(ctx)), MessageID: g.cfg.ID(m)}
		if key.MessageID == "" {
			g.cfg.Logger.WarnContext(ctx, "idempotency: a message without id runs unguarded", "consumer", key.Consumer)
			return h(m)
		}
		claim := &Claim{Key: key, Owner: rand.Int64(), Retention: g.cfg.Retention, digest: digest(m), began: time.Now()} //nolint:gosec // G404: keeps no secret
		record, err := g.claim(ctx, claim)
		if err != nil {
			// The handler has not run, and the store is at fault, whatever its error says: an account that is locked or a
			// table that is gone would be permanent if it were the handler's.
			if ctx.Err() == nil {
				g.cfg.Logger.WarnContext(ctx, "idempotency: the store failed; the message waits, and its handler has not run",
					"consumer", key.Consumer, "message_id", key.MessageID, "error", err)
			}
			return nil, g.cfg.Busy(fmt.Errorf("idempotency: claim %s: %w", key.MessageID, err), lookAgain)
		}
		switch record.State {
		case Done:
			g.cfg.Logger.InfoContext(ctx, "idempotency: duplicate of a handled message", "consumer", key.Consumer, "message_id",
				key.MessageID)
			out, err := decode(record.Outcome)
			if err != nil {
				// The effect has happened, so the handler must not run; without the messages that it produced, the message is not
				// done either. A later version or a repaired row may be readable.
				err = g.cfg.Busy(fmt.Errorf("idempotency: message %s: %w", key.MessageID, err), lookAgain)
			}
			return out, err
		case Busy:
			return nil, g.cfg.Busy(&BusyError{Key: key, Remaining: record.Remaining}, min(record.Remaining, lookAgain))
		case Claimed:
		}
		return g.run(h, m, claim)
	}
}

// claim claims a message, in the time in which a lease is renewed: a store that hangs must not keep the handler. If a
// message with the same id but different content is done, it is not this one: ids start over in a recreated topic or a
// second cluster. Then the message gets a separate key.
func (g *Guard) claim(ctx context.Context, c *Claim) (Record, error) {
	ctx, done := context.WithTimeout(ctx, g.cfg.Lease/3)
	defer done()
	record, err := g.cfg.Store.Claim(ctx, c.Key, c.Owner, g.cfg.Lease)
	if err != nil || record.State != Done {
		return record, err
	}
	if of, _ := split(record.Outcome); of == nil || bytes.Equal(of, c.digest) {
		return record, nil
	}
	g.cfg.Logger.WarnContext(ctx, "idempotency: a different message with this id has been handled; this one runs too",
		"consumer", c.Key.Consumer, "message_id", c.Key.MessageID)
	c.Key = c.Key.another(c.digest)
	return g.cfg.Store.Claim(ctx, c.Key, c.Owner, g.cfg.Lease)
}

// run runs the handler under the claim and settles the claim, however the handler ends.
func (g *Guard) run(h message.HandlerFunc, m *message.Message, claim *Claim) (out []*message.Message, err error) {
	outer := m.Context()
	ctx, cancel := context.WithCancelCause(context.WithValue(outer, claimKey{}, claim))
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
	err = errtree.Finite(err)
	switch {
	case err == nil:
		g.complete(outer, claim, out)
	case errors.Is(err, ErrLost), errors.Is(context.Cause(ctx), ErrLost) && !decisive(err):
		// The attempt was ended for want of a lease, which makes clients fail with all sorts of errors, and another owner may
		// succeed: as the last one, it would make a dead letter of a message that nothing is wrong with.
		err = g.cfg.Busy(fmt.Errorf("%w: %w", ErrLost, err), lookAgain)
	case claim.completed(0) && !decisive(err):
		// The handler's transaction may have been committed without an answer. One that is still open ends with its context.
		cancel(context.Canceled)
		fault := g.settle(outer, func(ctx context.Context) error {
			fault := g.cfg.Store.Renew(ctx, claim.Key, claim.Owner, g.cfg.Lease) // waits for a server that is still committing
			if !errors.Is(fault, ErrLost) {
				return fault
			}
			record, fault := g.cfg.Store.Claim(ctx, claim.Key, claim.Owner, g.cfg.Lease)
			switch {
			case fault != nil:
			case record.State == Done:
				g.cfg.Logger.WarnContext(ctx, "idempotency: a handler failed, but its message is marked as done", "consumer",
					claim.Key.Consumer, "message_id", claim.Key.MessageID, "error", err)
				out, err = decode(record.Outcome)
			case record.State == Busy:
				return ErrLost
			}
			return fault
		})
		if fault != nil { // whether the attempt has failed is unknown, or for another owner to decide
			err = g.cfg.Busy(fmt.Errorf("%w: %w", fault, err), lookAgain)
		}
	}
	returned = true
	return out, err
}

// decisive reports whether the handler has marked the message as one that no other owner should run either.
func decisive(err error) bool {
	marked, ok := errors.AsType[*middleware.MarkedError](err)
	return ok && (marked.Kind == middleware.KindPermanent || marked.Kind == middleware.KindSkip)
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
	pauses := wait.Backoff{First: 50 * time.Millisecond, Longest: time.Second}
	for try := 1; ; try++ {
		err := errtree.Finite(change(ctx))
		if err == nil || try == 3 || errors.Is(err, ErrLost) || wait.For(ctx, pauses.After(try)) != nil {
			return err
		}
	}
}

// Claim is the right to handle a message, for stores that take part in the handler's transaction.
type Claim struct {
	Key       Key
	Owner     int64
	Retention time.Duration

	digest []byte
	began  time.Time // before the lease did

	mu     sync.Mutex
	marked bool
	kept   int
}

type claimKey struct{}

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
	r := &renewal{expires: claim.began.Add(g.cfg.Lease)}
	interval := g.cfg.Lease / 3
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(interval, func() {
		began := time.Now()
		timeout, done := context.WithTimeout(context.WithoutCancel(ctx), interval)
		defer done()
		err := errtree.Finite(g.cfg.Store.Renew(timeout, claim.Key, claim.Owner, g.cfg.Lease))
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

// produced is a message as it is stored. gob keeps strings of any bytes, which JSON does not.
type produced struct {
	UUID     string
	Metadata map[string]string
	Payload  []byte
}

// digestSize is the length of the digest with which an outcome begins. A gob of the produced messages follows, if there
// are any.
const digestSize = 16

// digest is the digest of a message's content, the same in each of its attempts and in either mode.
func digest(m *message.Message) []byte {
	content := []byte(m.Payload)
	if e, err := envelope.FromMessage(m); err == nil && e.Mode() == envelope.Structured {
		content = e.Data()
	}
	sum := sha256.Sum256(content)
	return sum[:digestSize]
}

// another is the key of a message that has the id of a different one.
func (k Key) another(digest []byte) Key {
	id := sha256.Sum256(append([]byte(k.MessageID), digest...))
	k.MessageID = "sha256:" + hex.EncodeToString(id[:])
	return k
}

// Outcome returns what a [Store] keeps of the claimed message when it is done: a digest of its content, which
// identifies a different message with the same id, and the messages produced by its handler.
func (c *Claim) Outcome(messages ...*message.Message) ([]byte, error) {
	var out bytes.Buffer
	out.Write(c.digest)
	if len(messages) == 0 {
		return out.Bytes(), nil
	}
	var list []produced
	for _, m := range messages {
		if m != nil {
			list = append(list, produced{UUID: m.UUID, Metadata: m.Metadata, Payload: m.Payload})
		}
	}
	if err := gob.NewEncoder(&out).Encode(list); err != nil {
		return nil, fmt.Errorf("idempotency: encode the produced messages: %w", err)
	}
	return out.Bytes(), nil
}

// split returns the digest of an outcome, nil if it has none, and the rest of it.
func split(outcome []byte) (digest, produced []byte) {
	if len(outcome) < digestSize {
		return nil, nil
	}
	return outcome[:digestSize], outcome[digestSize:]
}

// decode recreates the produced messages of an outcome, with their ids.
func decode(outcome []byte) ([]*message.Message, error) {
	_, kept := split(outcome)
	if len(kept) == 0 {
		return nil, nil
	}
	var list []produced
	if err := gob.NewDecoder(bytes.NewReader(kept)).Decode(&list); err != nil {
		return nil, fmt.Errorf("idempotency: decode the produced messages: %w", err)
	}
	messages := make([]*message.Message, len(list))
	for i, p := range list {
		messages[i] = message.NewMessage(p.UUID, p.Payload)
		maps.Copy(messages[i].Metadata, p.Metadata)
	}
	return messages, nil
}
