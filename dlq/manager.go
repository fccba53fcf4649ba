package dlq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// By says who makes a change and why. Both stand in the audit log.
type By struct {
	// Actor is who: a user's name, from the authenticator and not from the request. Required.
	Actor string
	// Note is why.
	Note string
	// Version, unless 0, must be the entry's, as it was read before: the change is refused when somebody was faster.
	Version int64
}

// Manager is what an operator does with dead letters. It is safe for concurrent use, in any number of processes: every change is
// a compare-and-set in the store. It has nothing to close.
type Manager struct {
	store        Store
	redriver     Redriver
	logger       *slog.Logger
	publishTime  time.Duration
	outcomeLease time.Duration

	targets       map[string]envelope.Origin
	approvalAbove int64 // negative: no run needs approval
	runLease      time.Duration
	workEvery     time.Duration
	batch         int
	publishers    int
	wake          chan struct{}
}

// ManagerOption changes what [NewManager] makes.
type ManagerOption func(*Manager)

// WithManagerLogger sets where redrives are logged. Defaults to slog.Default().
func WithManagerLogger(l *slog.Logger) ManagerOption { return func(m *Manager) { m.logger = l } }

// WithPublishTimeout bounds the publish of one redriven message. The claim on its entry lasts twice as long: when the process dies
// in between, the entry can be redriven again after that. Defaults to 30 s.
func WithPublishTimeout(d time.Duration) ManagerOption { return func(m *Manager) { m.publishTime = d } }

// WithOutcomeTimeout sets how long a redriven message may take until its consumer says how it went, retries and their delays
// included. After that the entry may be redriven, resolved or discarded again, and the late outcome still counts. Defaults to
// 1 h.
func WithOutcomeTimeout(d time.Duration) ManagerOption {
	return func(m *Manager) { m.outcomeLease = d }
}

// NewManager makes a Manager. A nil r makes one that does everything but redrive. It panics when the store is nil or a timeout is
// not positive.
func NewManager(store Store, r Redriver, opts ...ManagerOption) *Manager {
	m := &Manager{
		store: store, redriver: r, logger: slog.Default(), publishTime: 30 * time.Second, outcomeLease: time.Hour,
		approvalAbove: -1, runLease: 30 * time.Second, workEvery: time.Second, batch: MaxPage, publishers: 256, wake: make(chan struct{}, 1),
	}
	for _, opt := range opts {
		opt(m)
	}
	if m.store == nil || m.logger == nil || m.publishTime <= 0 || m.outcomeLease <= 0 || m.runLease <= 0 || m.workEvery <= 0 ||
		m.batch < 1 || m.batch > MaxPage || m.publishers < 1 {
		panic("dlq: NewManager needs a store, a logger, positive timeouts and batches from 1 to 1,000")
	}
	return m
}

// Ping reports whether the store can take a dead letter now.
func (m *Manager) Ping(ctx context.Context) error { return m.store.Ping(ctx) }

// List returns a page of the entries that the filter picks, without their bodies.
func (m *Manager) List(ctx context.Context, f Filter, p Page) (Listing, error) {
	return m.store.List(ctx, f, p)
}

// Count returns how many entries the filter picks, but counts no further than limit; 0 is no limit.
func (m *Manager) Count(ctx context.Context, f Filter, limit int64) (int64, error) {
	return m.store.Count(ctx, f, limit)
}

// Get returns an entry with its body. The error wraps [ErrNotFound] when there is none.
func (m *Manager) Get(ctx context.Context, id int64) (*Entry, error) { return m.store.Get(ctx, id) }

// Groups returns the causes, those with the most entries first.
func (m *Manager) Groups(ctx context.Context, q GroupQuery) ([]Group, error) {
	return m.store.Groups(ctx, q)
}

// Stats returns the numbers of a dashboard.
func (m *Manager) Stats(ctx context.Context, q StatsQuery) (Stats, error) {
	return m.store.Stats(ctx, q)
}

// Audit returns what was done to an entry, oldest first; its first death is the entry itself.
func (m *Manager) Audit(ctx context.Context, id int64) ([]AuditRecord, error) {
	var all []AuditRecord
	page := Page{Order: OldestFirst, Limit: MaxPage}
	for {
		records, next, err := m.store.Audit(ctx, AuditFilter{EntryID: id}, page)
		all = append(all, records...)
		if err != nil || next == "" {
			return all, err
		}
		page.After = next
	}
}

// AuditLog returns a page of the audit log, newest first unless the page says otherwise, and the cursor of the next page.
func (m *Manager) AuditLog(ctx context.Context, f AuditFilter, p Page) ([]AuditRecord, string, error) {
	return m.store.Audit(ctx, f, p)
}

// Redrive sends a dead letter back to its consumer: claim, publish, wait for the outcome. It returns the entry as RETRYING once the
// broker has confirmed the message; the consumer's success makes it RESOLVED, another death PENDING again. When somebody else
// was faster the error is a [*ConflictError] that names them, and nothing was sent. When the publish fails the claim is given
// back. When the process dies between claim and publish, the entry can be redriven again after twice the publish timeout;
// should the message have gone out nevertheless, that makes one duplicate, with the same message id.
func (m *Manager) Redrive(ctx context.Context, id int64, by By) (*Entry, error) {
	if m.redriver == nil {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: this manager has no Redriver to publish with", id, ErrInvalid)
	}
	claimed, err := m.change(ctx, id, by, Change{Action: ActionRedrive, Lease: 2 * m.publishTime})
	if err != nil {
		return nil, err
	}
	if err := m.publish(ctx, claimed); err != nil {
		return nil, errors.Join(fmt.Errorf("dlq: redrive entry %d: %w", id, err), m.release(ctx, claimed, by, err))
	}
	// The outcome may be here before this record: then the version has changed and the record is not needed.
	published, err := m.change(context.WithoutCancel(ctx), id, By{Actor: by.Actor, Version: claimed.Version},
		Change{Action: ActionPublished, Lease: m.outcomeLease})
	if err != nil {
		if !errors.Is(err, ErrConflict) {
			m.logger.WarnContext(ctx, "a redriven message is out, but the store could not record it; its outcome still counts",
				"entry_id", id, "error", err)
		}
		published = claimed
	}
	m.logger.InfoContext(ctx, "dead letter redriven", "entry_id", id, "message_id", claimed.EventID,
		"topic", claimed.Origin.Topic, "redrive", claimed.RedriveCount, "actor", by.Actor)
	return published, nil
}

func (m *Manager) publish(ctx context.Context, claimed *Entry) error {
	full, err := m.store.Get(ctx, claimed.ID)
	if err != nil {
		return err
	}
	// What was claimed decides the numbers in the headers, should the entry have moved on since.
	claimed.Body = full.Body
	ctx, cancel := context.WithTimeout(ctx, m.publishTime)
	defer cancel()
	return m.redriver.Reschedule(ctx, claimed.Origin, RedriveMessage(claimed), 0)
}

// release gives a claim back. That fails only when the store fails or the claim is over: then the lease does it.
func (m *Manager) release(ctx context.Context, claimed *Entry, by By, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.publishTime)
	defer cancel()
	note := "not published: " + cause.Error()
	_, err := m.change(ctx, claimed.ID, By{Actor: by.Actor, Note: clean(note, maxErrorText), Version: claimed.Version},
		Change{Action: ActionRelease})
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Resolve says that an entry is taken care of: RESOLVED, by the actor.
func (m *Manager) Resolve(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, Change{Action: ActionResolve})
}

// Discard gives an entry up: DISCARDED. It is kept and can be restored.
func (m *Manager) Discard(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, Change{Action: ActionDiscard})
}

// Park puts an entry aside for a person: PARKED. Neither a rule nor a run over PENDING entries takes it.
func (m *Manager) Park(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, Change{Action: ActionPark})
}

// Restore takes Resolve, Discard or Park back: PENDING.
func (m *Manager) Restore(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, Change{Action: ActionRestore})
}

// Purge removes entries that were closed before a time, RESOLVED ones unless said otherwise, after a copy to the archive. It works
// in transactions of at most p.Limit entries until none is left or the context ends, and returns how many it removed.
func (m *Manager) Purge(ctx context.Context, p Purge) (int, error) {
	if p.At.IsZero() {
		p.At = time.Now()
	}
	p, err := p.Resolve()
	if err != nil {
		return 0, err
	}
	total := 0
	if months, ok := m.store.(MonthStore); ok {
		if total, err = months.PurgeMonths(ctx, p); err != nil {
			return total, err
		}
	}
	for {
		n, err := m.store.Purge(ctx, p)
		total += n
		if err != nil || n < p.Limit {
			return total, err
		}
	}
}

func (m *Manager) change(ctx context.Context, id int64, by By, c Change) (*Entry, error) {
	c.IDs, c.Version, c.Actor, c.Note, c.At = []int64{id}, by.Version, by.Actor, by.Note, time.Now()
	results, err := m.store.Change(ctx, c)
	if err != nil {
		return nil, err
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	return &results[0].Entry, nil
}
