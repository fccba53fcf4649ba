package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/envelope"
)

// ManagerConfig is what a [Manager] works with.
type ManagerConfig struct {
	// Store has the dead letters. Required.
	Store Store
	// Redriver publishes. Nil makes a Manager that does everything but redrive.
	Redriver Redriver
	// Logger is where redrives are logged. Defaults to slog.Default().
	Logger *slog.Logger
	// PublishTimeout bounds the publish of one redriven message. The claim on its entry lasts twice as long: when the
	// process dies in between, the entry can be redriven again after that. Defaults to 30 s.
	PublishTimeout time.Duration
	// OutcomeTimeout is how long a redriven message may take until its consumer reports how it went, retries and their
	// delays included. After that the entry may be redriven, resolved or discarded again, and the late outcome still
	// counts. Defaults to 1 h.
	OutcomeTimeout time.Duration
	// JQ runs the expressions of edits. Defaults to [payload.InProcess], which does not bound their memory; a server
	// takes a [payload.Child].
	JQ payload.Evaluator
	// Approval bounds what one person sends alone; give the same to redrive.Config. Nil is not a bound.
	Approval *Approval
}

// Defaults of [ManagerConfig].
const (
	defaultPublishTimeout = 30 * time.Second
	defaultOutcomeTimeout = time.Hour
)

// Manager is what an operator does with dead letters one by one; package redrive does it in bulk. It is safe for
// concurrent use, in any number of processes: every change is a compare-and-set in the store. It has nothing to close.
type Manager struct{ cfg ManagerConfig }

// NewManager makes a Manager. The error reports everything that is wrong with the configuration.
func NewManager(cfg ManagerConfig) (*Manager, error) {
	var errs []error
	if cfg.Store == nil {
		errs = append(errs, errors.New("a store is required"))
	}
	if cfg.PublishTimeout < 0 || cfg.OutcomeTimeout < 0 {
		errs = append(errs, fmt.Errorf("publish timeout %s, outcome timeout %s: must not be negative", cfg.PublishTimeout,
			cfg.OutcomeTimeout))
	}
	if cfg.Approval != nil {
		resolved, err := cfg.Approval.Resolve()
		cfg.Approval = &resolved
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dlq: manager: %w: %w", ErrInvalid, err)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.JQ == nil {
		cfg.JQ = &payload.InProcess{}
	}
	cfg.PublishTimeout = cmp.Or(cfg.PublishTimeout, defaultPublishTimeout)
	cfg.OutcomeTimeout = cmp.Or(cfg.OutcomeTimeout, defaultOutcomeTimeout)
	return &Manager{cfg: cfg}, nil
}

// CanRedrive reports whether the Manager has a Redriver: without one it refuses every redrive.
func (m *Manager) CanRedrive() bool { return m.cfg.Redriver != nil }

// Ping reports whether the store can take a dead letter now.
func (m *Manager) Ping(ctx context.Context) error { return m.cfg.Store.Ping(ctx) }

// List returns a page of the entries that the filter picks, without their bodies.
func (m *Manager) List(ctx context.Context, f Filter, p Page) (driver.Listing, error) {
	return m.cfg.Store.List(ctx, f, p)
}

// Count returns how many entries the filter picks, but counts no further than limit; 0 is not a limit.
func (m *Manager) Count(ctx context.Context, f Filter, limit int64) (int64, error) {
	return m.cfg.Store.Count(ctx, f, limit)
}

// Get returns an entry with its body. The error wraps [ErrNotFound] if it does not exist.
func (m *Manager) Get(ctx context.Context, id int64) (*Entry, error) { return m.cfg.Store.Get(ctx, id) }

// Groups returns the causes, those with the most entries first.
func (m *Manager) Groups(ctx context.Context, q GroupQuery) ([]driver.Group, error) {
	return m.cfg.Store.Groups(ctx, q)
}

// ListGroups returns the causes as [Manager.Groups] does, and reports whether there are more. With a limit of
// [driver.MaxPage] a full list is reported as one with more: no store can be asked for one group above it.
func (m *Manager) ListGroups(ctx context.Context, q GroupQuery) (groups []driver.Group, more bool, err error) {
	limit := cmp.Or(q.Limit, driver.DefaultGroups)
	if q.Limit = limit; limit > 0 && limit < driver.MaxPage {
		q.Limit++
	}
	groups, err = m.Groups(ctx, q)
	if err != nil {
		return nil, false, err
	}
	more = len(groups) > limit || limit == driver.MaxPage && len(groups) == limit
	return groups[:min(limit, len(groups))], more, nil
}

// Stats returns the numbers of a dashboard.
func (m *Manager) Stats(ctx context.Context, q StatsQuery) (driver.Stats, error) {
	return m.cfg.Store.Stats(ctx, q)
}

// Audit returns what was done to an entry, oldest first; its first death is the entry itself.
func (m *Manager) Audit(ctx context.Context, id int64) ([]driver.AuditRecord, error) {
	var all []driver.AuditRecord
	page := Page{Order: driver.OldestFirst, Limit: driver.MaxPage}
	for {
		records, next, err := m.cfg.Store.Audit(ctx, AuditFilter{EntryID: id}, page)
		all = append(all, records...)
		if err != nil || next == "" {
			return all, err
		}
		page.After = next
	}
}

// AuditLog returns a page of the audit log, newest first unless the page says otherwise, and the cursor of the next
// page.
func (m *Manager) AuditLog(ctx context.Context, f AuditFilter, p Page) ([]driver.AuditRecord, string, error) {
	return m.cfg.Store.Audit(ctx, f, p)
}

// Record appends to the audit log what changes no entry: that something was read, or refused.
func (m *Manager) Record(ctx context.Context, records ...driver.AuditRecord) error {
	log, ok := driver.As[driver.RecordStore](m.cfg.Store)
	if !ok {
		return fmt.Errorf("dlq: %w: %T records nothing but changes", ErrInvalid, m.cfg.Store)
	}
	return log.Record(ctx, records...)
}

// Redrive sends a dead letter back to its consumer: claim, publish, wait for the outcome. It returns the entry as
// RETRYING once the broker has confirmed the message; the consumer's success makes it RESOLVED, another death PENDING
// again. When somebody else was faster the error is a [*ConflictError] that names them, and nothing was sent. When the
// publish fails the claim is returned. When the process dies between claim and publish, the entry can be redriven
// again after twice the publish timeout; should the message have gone out nevertheless, that makes one duplicate, with
// the same message id. The error wraps [ErrForbidden] when the actor may not send another message alone; see
// [Approval].
func (m *Manager) Redrive(ctx context.Context, id int64, by By) (*Entry, error) {
	if m.cfg.Redriver == nil {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: this manager has no Redriver to publish with", id, ErrInvalid)
	}
	unreserve, err := m.reserve(ctx, id, by)
	if err != nil {
		return nil, err
	}
	claimed, err := m.change(ctx, id, by, driver.Change{Action: driver.ActionRedrive, Lease: 2 * m.cfg.PublishTimeout})
	if err != nil {
		unreserve()
		return nil, err
	}
	if err := m.publish(ctx, claimed); err != nil {
		unreserve()
		return nil, errors.Join(fmt.Errorf("dlq: redrive entry %d: %w: %w", id, ErrPublish, err),
			m.release(ctx, claimed, by, err))
	}
	// The outcome may be here before this record: then the version has changed and the record is not needed.
	published, err := m.change(context.WithoutCancel(ctx), id, By{Actor: by.Actor, Version: claimed.Version},
		driver.Change{Action: driver.ActionPublished, Lease: m.cfg.OutcomeTimeout})
	if err != nil {
		if !errors.Is(err, ErrConflict) {
			m.cfg.Logger.WarnContext(ctx, "a redriven message is out, but the store could not record it; its outcome still "+
				"counts",
				"entry_id", id, "error", err)
		}
		published = claimed
	}
	m.cfg.Logger.InfoContext(ctx, "dead letter redriven", "entry_id", id, "message_id", claimed.EventID,
		"topic", claimed.Origin.Topic, "redrive", claimed.RedriveCount, "actor", by.Actor)
	return published, nil
}

func (m *Manager) publish(ctx context.Context, claimed *Entry) error {
	full, err := m.cfg.Store.Get(ctx, claimed.ID)
	if err != nil {
		return err
	}
	// What was claimed decides the numbers in the headers, should the entry have moved on since.
	claimed.Body = full.Body
	ctx, cancel := context.WithTimeout(envelope.WithExistingOnly(ctx), m.cfg.PublishTimeout)
	defer cancel()
	return m.cfg.Redriver.Reschedule(ctx, claimed.Origin, RedriveMessage(claimed), 0) //nolint:contextcheck // the message has its own
}

// release returns a claim. That fails only when the store fails or the claim is over: then the lease does it.
func (m *Manager) release(ctx context.Context, claimed *Entry, by By, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.PublishTimeout)
	defer cancel()
	note := "not published: " + cause.Error()
	_, err := m.change(ctx, claimed.ID, By{
		Actor: by.Actor, Note: text.Clean(note, text.MaxError), Version: claimed.Version,
	},
		driver.Change{Action: driver.ActionRelease})
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Resolve records that an entry is taken care of: RESOLVED, by the actor.
func (m *Manager) Resolve(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{
		Action:     driver.ActionResolve,
		ResolvedBy: text.Clean(by.ResolvedBy, text.MaxName),
	})
}

// Discard gives an entry up: DISCARDED. It is kept and can be restored.
func (m *Manager) Discard(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionDiscard})
}

// Park puts an entry aside for a person: PARKED. Neither a rule nor a run over PENDING entries takes it.
func (m *Manager) Park(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionPark})
}

// Release ends the wait for the outcome of a redrive before its time, when a person knows that none will come: RETRYING
// to PENDING, or to PARKED when its redrives are used up. By.Note must explain why. Should the message be out there
// after all, its outcome still counts.
func (m *Manager) Release(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionReleaseByHand})
}

// Restore takes Resolve, Discard or Park back: PENDING.
func (m *Manager) Restore(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionRestore})
}

// Purge removes entries that were closed before a time, RESOLVED ones unless said otherwise, after a copy to the
// archive. It works in transactions of at most p.Limit entries until none is left or the context ends, and returns how
// many it removed.
func (m *Manager) Purge(ctx context.Context, p Purge) (int, error) {
	if p.At.IsZero() {
		p.At = m.Now(ctx)
	}
	p, err := p.Resolve()
	if err != nil {
		return 0, err
	}
	total := 0
	if months, ok := driver.As[driver.MonthStore](m.cfg.Store); ok {
		if total, err = months.PurgeMonths(ctx, p); err != nil {
			return total, err
		}
	}
	for {
		n, err := m.cfg.Store.Purge(ctx, p)
		total += n
		if err != nil || n < p.Limit {
			return total, err
		}
	}
}

// Now returns the time by which the processes on the store decide together: the store's, which need not be the
// process's.
func (m *Manager) Now(ctx context.Context) time.Time { return driver.Now(ctx, m.cfg.Store) }

func (m *Manager) change(ctx context.Context, id int64, by By, c driver.Change) (*Entry, error) {
	c.IDs, c.Version, c.Actor, c.Note, c.At = []int64{id}, by.Version, by.Actor, by.Note, m.Now(ctx)
	results, err := m.cfg.Store.Change(ctx, c)
	if err != nil {
		return nil, err
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	return &results[0].Entry, nil
}
