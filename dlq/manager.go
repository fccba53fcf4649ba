package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// ManagerConfig configures a [Manager], and a redrive.Runner made of it.
type ManagerConfig struct {
	// Store has the dead letters. Required.
	Store Store
	// Redriver publishes redriven messages. With nil, a Manager cannot redrive, and a Runner starts, shows and changes
	// runs, and leaves the redriving to other processes.
	Redriver Redriver
	// Logger logs redrives. Defaults to slog.Default().
	Logger *slog.Logger
	// PublishTimeout bounds the publish of one redriven message, or of one batch of a run. The claim on an entry lasts
	// twice as long; if the process dies, the entry can be redriven again after that. Defaults to 30 s.
	PublishTimeout time.Duration
	// OutcomeTimeout is how long the consumer of a redriven message may take to report its outcome, retries and their
	// delays included. After that the entry may be redriven, resolved or discarded again, and the late outcome still
	// counts. Defaults to 1 h. The spec of a run may have another.
	OutcomeTimeout time.Duration
	// JQ evaluates the expressions of edits and runs. Defaults to [payload.InProcess], which does not limit memory; a
	// server should use a [payload.Child].
	JQ payload.Evaluator
	// Approval limits what one person may send alone, singly and in runs: a run that exceeds it waits for a second person,
	// and so does any run that edits or has another target. Nil means no limit.
	Approval *Approval
}

// Defaults of [ManagerConfig].
const (
	defaultPublishTimeout = 30 * time.Second
	defaultOutcomeTimeout = time.Hour
)

// Manager has an operator's operations on single dead letters; package redrive has those in bulk. It is safe for
// concurrent use, also by many processes: every change is a compare-and-set in the store. It need not be closed.
type Manager struct {
	driver.Reader // of the store
	cfg           ManagerConfig
}

// NewManager makes a Manager. The error reports every fault of the configuration.
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
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.JQ == nil {
		cfg.JQ = &payload.InProcess{}
	}
	cfg.PublishTimeout = cmp.Or(cfg.PublishTimeout, defaultPublishTimeout)
	cfg.OutcomeTimeout = cmp.Or(cfg.OutcomeTimeout, defaultOutcomeTimeout)
	return &Manager{cfg.Store, cfg}, nil
}

// Config is the Manager's configuration with its defaults filled in. A redrive.Runner works by it, too.
func (m *Manager) Config() ManagerConfig { return m.cfg }

// CanRedrive reports whether the Manager has a Redriver: without one it refuses every redrive.
func (m *Manager) CanRedrive() bool { return m.cfg.Redriver != nil }

// ListGroups is [Manager.Groups] and also reports whether there are more. With a limit of [wire.MaxGroups], a full
// list counts as one with more, because no store can return an additional group.
func (m *Manager) ListGroups(ctx context.Context, q GroupQuery) (groups []driver.Group, more bool, err error) {
	limit := cmp.Or(q.Limit, wire.DefaultGroups)
	if q.Limit = limit; limit > 0 && limit < wire.MaxGroups {
		q.Limit++
	}
	groups, err = m.Groups(ctx, q)
	if err != nil {
		return nil, false, err
	}
	more = len(groups) > limit || limit == wire.MaxGroups && len(groups) == limit
	return groups[:min(limit, len(groups))], more, nil
}

// Audit returns the changes of an entry, oldest first; the first death is not among them.
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

// Record appends records to the audit log that change no entry, such as reads and refusals.
func (m *Manager) Record(ctx context.Context, records ...driver.AuditRecord) error {
	log, err := required[driver.RecordStore](ctx, m.cfg.Store,
		fmt.Errorf("dlq: %w: %T can only record changes", ErrInvalid, m.cfg.Store))
	if err != nil {
		return err
	}
	return log.Record(ctx, records...)
}

// Redrive sends a dead letter back to its consumer: claim, publish, wait for the outcome. It returns the entry as
// RETRYING once the broker has confirmed the message; the consumer's success makes it RESOLVED, another death PENDING
// again. If someone else was faster, the error is a [*ConflictError] that names them, and nothing was sent. If the
// publish fails, the claim is released. If the process dies between claim and publish, the entry can be redriven again
// after twice the publish timeout; if the message was sent after all, the result is one duplicate with the same message
// id. The error wraps [ErrForbidden] when the actor may not send another message alone; see [Approval].
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
	// The outcome may have arrived before this record: then the version has changed and the record is not needed.
	published, err := m.change(context.WithoutCancel(ctx), id, By{Actor: by.Actor, Version: claimed.Version},
		driver.Change{Action: driver.ActionPublished, Lease: m.cfg.OutcomeTimeout})
	if err != nil {
		if !errors.Is(err, ErrConflict) {
			m.cfg.Logger.WarnContext(ctx, "a redriven message was sent, but the store could not record it; its outcome still "+
				"counts", "entry_id", id, "error", err)
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
	// The claim's numbers go into the headers, even if the entry has changed since.
	claimed.Body = full.Body
	// A caller that gives up meanwhile, such as a browser, must not make a sent message one that was not sent.
	ctx, cancel := context.WithTimeout(envelope.WithExistingOnly(context.WithoutCancel(ctx)), m.cfg.PublishTimeout)
	defer cancel()
	return m.cfg.Redriver.Reschedule(ctx, claimed.Origin, RedriveMessage(claimed), 0) //nolint:contextcheck // the message has its own
}

// release returns a claim. If the store fails or the claim is over, the lease ends it.
func (m *Manager) release(ctx context.Context, claimed *Entry, by By, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.PublishTimeout)
	defer cancel()
	note := "not published: " + cause.Error()
	released := By{Actor: by.Actor, Note: text.Clean(note, text.MaxError), Version: claimed.Version}
	c := driver.Change{Action: driver.ActionRelease}
	redrives := AuditFilter{EntryID: claimed.ID, Action: driver.ActionRedrive}
	claims, _, _ := m.cfg.Store.Audit(ctx, redrives, Page{}) // without them the redrives decide
	for _, claim := range claims {
		if claim.Version == claimed.Version { // the newest may be an earlier one, by a clock ahead
			c.Before = claim.From
		}
	}
	_, err := m.change(ctx, claimed.ID, released, c)
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// Resolve marks an entry as taken care of by the actor: RESOLVED.
func (m *Manager) Resolve(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{
		Action: driver.ActionResolve, ResolvedBy: text.Clean(by.ResolvedBy, text.MaxName),
	})
}

// Discard gives up on an entry: DISCARDED. It is kept and can be restored.
func (m *Manager) Discard(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionDiscard})
}

// Park sets an entry aside for a person: PARKED. Rules, and runs over PENDING entries, skip it.
func (m *Manager) Park(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionPark})
}

// Release ends the wait for the outcome of a redrive early, when a person knows that there will be none: RETRYING to
// PENDING, or to PARKED when its redrives are used up. By.Note must explain why. If the message is handled after all,
// its outcome still counts.
func (m *Manager) Release(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionReleaseByHand})
}

// Restore undoes Resolve, Discard or Park: PENDING.
func (m *Manager) Restore(ctx context.Context, id int64, by By) (*Entry, error) {
	return m.change(ctx, id, by, driver.Change{Action: driver.ActionRestore})
}

// Purge removes entries that were closed before a time, by default RESOLVED ones, after copying them to the archive. It
// works in transactions of at most p.Limit entries until none is left or the context ends, and returns how many it
// removed.
func (m *Manager) Purge(ctx context.Context, p Purge) (int, error) {
	months, ok, err := optional[driver.MonthStore](ctx, m.cfg.Store)
	if err != nil {
		return 0, err
	}
	if p.At.IsZero() {
		p.At = m.Now(ctx)
	}
	if p, err = p.Resolve(); err != nil {
		return 0, err
	}
	total := 0
	if ok {
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

// Now returns the store's time, which all processes on the store share and which may differ from this process's.
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

// Unarchive restores purged entries from the archive unchanged, and returns the ids of those restored. They can then be
// restored to PENDING and redriven.
func (m *Manager) Unarchive(ctx context.Context, by By, ids ...int64) ([]int64, error) {
	store, err := required[driver.ArchiveStore](ctx, m.cfg.Store,
		fmt.Errorf("dlq: unarchive: %w: this store has no archive", ErrInvalid))
	if err != nil {
		return nil, err
	}
	return store.Unarchive(ctx, by, m.Now(ctx), ids...)
}

// ErrPublish means that the broker did not accept the message of a redrive: the entry is as before.
var ErrPublish = errors.New("the broker did not accept the message")

// Redriver sends a message back to the consumer that it came from. It returns nil when the broker has confirmed it. A
// brokers.Broker is a Redriver.
type Redriver interface {
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error
}

// RedriverFunc makes a function a Redriver: for example one that chooses a broker by origin.Broker.
type RedriverFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f RedriverFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// RedriveMessage is the message that redrives an entry, whose Body must be set: the dead payload, headers and id, with
// a retry count of 0 and with the entry's id and redrive number, by which its outcome is matched.
func RedriveMessage(e *Entry) *message.Message {
	m := message.NewMessage(e.Body.UUID, e.Body.Payload)
	maps.Copy(m.Metadata, e.Body.Headers)
	out := envelope.PrepareRedrive(m, envelope.Redrive{ID: driver.FormatID(e.ID), Count: e.RedriveCount, Run: e.Run})
	out.SetContext(driver.WithCollected(out.Context(), e.Body.Collected))
	return out
}

// ErrNoServices means that the store does not keep reports of services.
var ErrNoServices = errors.New("this store does not keep reports of services")

// Services returns, by name, the services with a report since then or that are paused. See package live.
func (m *Manager) Services(ctx context.Context, since time.Time) ([]driver.Service, error) {
	store, err := required[driver.ServiceStore](ctx, m.cfg.Store, ErrNoServices)
	if err != nil {
		return nil, err
	}
	return store.Services(ctx, since)
}

// PauseIntake stops every process of a service from receiving messages, or resumes it. Messages in their handlers are
// finished; a process reacts at its next report.
func (m *Manager) PauseIntake(ctx context.Context, service string, pause bool, by By) error {
	store, err := required[driver.ServiceStore](ctx, m.cfg.Store, ErrNoServices)
	switch {
	case err != nil:
		return fmt.Errorf("dlq: pause intake: %w", err)
	case service == "" || by.Actor == "":
		return fmt.Errorf("dlq: pause intake: %w: a service and an actor are required", ErrInvalid)
	}
	now := m.Now(ctx).UTC()
	action := driver.ActionResumeIntake
	if pause {
		action = driver.ActionPauseIntake
	}
	return store.PauseIntake(ctx, driver.IntakePause{Service: service, Paused: pause, By: by.Actor, At: now},
		driver.AuditRecord{
			At: now, Actor: by.Actor, Action: action, Note: by.Note, Detail: map[string]string{"service": service},
		})
}
