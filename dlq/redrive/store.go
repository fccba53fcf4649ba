package redrive

import (
	"context"
	"errors"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Store is the part of a store that keeps redrive runs. Only the process that holds a run's lease changes its items, in
// steps of one transaction each: a run is always as far as its last step, whatever happens to the process.
type Store interface {
	// CreateRun stores a new run, in state Preparing with nothing frozen, and its audit record. Its FreezeTo becomes the
	// newest existing entry. If its id is taken, the error is a [*ConflictError] with that run's state, and who started it
	// when.
	CreateRun(ctx context.Context, r *Run, audit driver.AuditRecord) error
	// Run returns a run. The error wraps ErrNotFound if it does not exist.
	Run(ctx context.Context, id string) (*Run, error)
	// Runs returns a page of the runs that the filter selects, and the cursor of the next page.
	Runs(ctx context.Context, f RunFilter, p dlq.Page) ([]Run, string, error)
	// ChangeRun replaces everything of a run but its counts, its lease and its freezing if its version is r.Version-1, and
	// stores the audit record in the same transaction. The error wraps ErrConflict for another version, ErrNotFound
	// without a run.
	ChangeRun(ctx context.Context, r *Run, audit driver.AuditRecord) error
	// LeaseRun leases the run to holder from at on, or extends its lease, and returns the run. A lease of 0 ends it. The
	// error wraps ErrLeaseLost while another holder has the lease.
	LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*Run, error)
	// FreezeRun makes items of the next entries that the run's filter selects, at most limit: waiting, with the entry's
	// current version and revision. It reads the texts of at most limit. It returns the run, whose FrozenTo is its
	// FreezeTo at the end.
	FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, error)
	// NextItems returns waiting items with their entries and bodies, by entry id, following the entry after: at most
	// limit, and at most bytes of payload, but at least one.
	NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]Item, error)
	// StepRun does one step of a run. The error wraps ErrLeaseLost if the holder has no lease: then nothing was done.
	StepRun(ctx context.Context, s Step) (Stepped, error)
	// SettleRun updates the items that are claimed or out according to [Item.Settle], at most limit, and returns the run
	// and how many changed.
	SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, int, error)
	// RunItems returns a page of a run's items, by entry id.
	RunItems(ctx context.Context, id string, f ItemFilter) ([]Item, error)
	// SplitRun counts the entries of a run by topic, and by cause, at most this many causes, the largest first.
	SplitRun(ctx context.Context, id string, causes int) ([]TopicCount, []CauseCount, error)
	// Split counts the entries that the filter selects by topic, the largest first.
	Split(ctx context.Context, f dlq.Filter) ([]TopicCount, error)
}

// Step is what one transaction does for a run, in this order: record the published entries, return the others, skip,
// claim.
type Step struct {
	// Run and Holder name the run and the process that holds its lease. Required. Lease extends it from At.
	Run, Holder string
	At          time.Time
	Lease       time.Duration
	// Actor is who the entries are changed by.
	Actor string
	// Published are claimed items that the broker confirmed: they are out. With ClosePublished their entries become
	// RESOLVED at once, and the items have succeeded.
	Published      []int64
	ClosePublished bool
	// Released are claimed items that the broker refused: their entries are as before, and they wait again.
	Released []Refusal
	// Skipped are waiting or claimed items that are not redriven. The entry of a claimed one is released.
	Skipped []Refusal
	// Claims are waiting items to claim while the run is running: their entries become RETRYING if their version is still
	// the item's. For the others, see [Item.Refused].
	Claims []Claim
	// Known are entries of Published and Claims, by id, as the caller read or claimed them, without their bodies. A store
	// may use one instead of reading it again, as long as the stored version is the same. May be nil.
	Known map[int64]*dlq.Entry
	// OutcomeTimeout is how long the claimed entries wait for their outcome, ClaimTimeout how long a claim waits for the
	// record of its publish.
	OutcomeTimeout, ClaimTimeout time.Duration
}

// Refusal is an item that is not redriven, and why.
type Refusal struct {
	EntryID int64
	Detail  string
	// Before is the entry's status before its claim, which it gets back.
	Before dlq.Status
}

// Claim is a request to claim an entry.
type Claim struct {
	EntryID, Version int64
	// Body, unless nil, becomes the entry's next revision with the claim: the result of the run's jq expression.
	Body *dlq.Body
}

// Stepped is the result of a [Step].
type Stepped struct {
	// Run is the run after the step.
	Run *Run
	// Claimed are the claimed entries, without Body, in the order of the claims; the others were skipped.
	Claimed []dlq.Entry
	// Changed are the changes of entries by the step, the claims among them.
	Changed map[driver.Action][]driver.Result
}

var (
	// ErrForbidden means that this person may not do it: for example, approve their own run.
	ErrForbidden = dlq.ErrForbidden
	// ErrLeaseLost means that another process has taken over the run.
	ErrLeaseLost = errors.New("another process holds the lease")
)

// Observer is a [dlq.Observer] that is also notified of redrive runs. A [Runner] finds it through its store.
type Observer interface {
	// Stepped is called after a step of a redrive run was stored, with its result.
	Stepped(s Step, done Stepped)
	// Failed is called when the store did not respond; op is step.
	Failed(op string, err error)
}

// runnerStore is how a [Runner] uses a store. It puts a timeout on the calls that drive a run, because one that hangs
// would hold the run, lease or not, until the process ends. It also notifies the observer, if there is one, of steps.
type runnerStore struct {
	Store

	timeout  time.Duration
	observer Observer
}

// newRunnerStore finds the part of a store that keeps runs, and its observer.
func newRunnerStore(s driver.Store, timeout time.Duration) (*runnerStore, bool) {
	runs, ok := driver.As[Store](s)
	if !ok {
		return nil, false
	}
	rs := &runnerStore{Store: runs, timeout: timeout}
	if observed, ok := driver.As[interface{ Observer() dlq.Observer }](s); ok {
		rs.observer, _ = observed.Observer().(Observer)
	}
	return rs, true
}

// Run implements [Store].
func (s *runnerStore) Run(ctx context.Context, id string) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.Run(ctx, id)
}

// Runs implements [Store].
func (s *runnerStore) Runs(ctx context.Context, f RunFilter, p driver.Page) ([]Run, string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.Runs(ctx, f, p)
}

// ChangeRun implements [Store].
func (s *runnerStore) ChangeRun(ctx context.Context, r *Run, audit driver.AuditRecord) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.ChangeRun(ctx, r, audit)
}

// LeaseRun implements [Store].
func (s *runnerStore) LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*Run,
	error,
) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.LeaseRun(ctx, id, holder, at, lease)
}

// FreezeRun implements [Store].
func (s *runnerStore) FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.FreezeRun(ctx, id, holder, at, limit)
}

// NextItems implements [Store].
func (s *runnerStore) NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]Item, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.NextItems(ctx, id, after, limit, bytes)
}

// StepRun implements [Store].
func (s *runnerStore) StepRun(ctx context.Context, step Step) (Stepped, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stepped, err := s.Store.StepRun(ctx, step)
	switch {
	case s.observer == nil:
	case err != nil:
		s.observer.Failed("step", err)
	default:
		s.observer.Stepped(step, stepped)
	}
	return stepped, err
}

// SettleRun implements [Store].
func (s *runnerStore) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.SettleRun(ctx, id, holder, at, limit)
}
