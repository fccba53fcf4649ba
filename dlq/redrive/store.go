package redrive

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Store is the part of a store that keeps redrive runs. Only the process that holds a run's lease changes its items, by
// steps that are one transaction each: a run is always as far as its last step, whatever happens to the process.
type Store interface {
	// CreateRun stores a new run, in state Preparing with nothing frozen, and its audit record. Its FreezeTo becomes
	// the newest entry there is. The error is a [*ConflictError] with its state, and who started it when, when there is
	// a run with its id.
	CreateRun(ctx context.Context, r *Run, audit driver.AuditRecord) error
	// Run returns a run. The error wraps ErrNotFound if it does not exist.
	Run(ctx context.Context, id string) (*Run, error)
	// Runs returns a page of the runs that the filter picks, and the cursor of the next page.
	Runs(ctx context.Context, f RunFilter, p dlq.Page) ([]Run, string, error)
	// ChangeRun replaces everything of a run but its counts, its lease and its freezing, when its version is
	// r.Version-1, and stores the audit record in the same transaction. The error wraps ErrConflict when it is another,
	// ErrNotFound without a run.
	ChangeRun(ctx context.Context, r *Run, audit driver.AuditRecord) error
	// LeaseRun takes the run for holder from at on, or extends its lease, and returns the run. A lease of 0 gives it
	// back. The error wraps ErrLeaseLost when another holder's lease lasts.
	LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*Run, error)
	// FreezeRun looks at the next entries, at most limit, and makes items of those that the run's filter picks:
	// waiting, with the version and the revision that the entry has. It returns the run, whose FrozenTo is its FreezeTo
	// when all is done.
	FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, error)
	// NextItems returns waiting items with their entries and bodies, by entry id, behind the entry after: at most
	// limit, and no more than bytes of payload, but one at least.
	NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]Item, error)
	// StepRun does one step of a run. The error wraps ErrLeaseLost when the holder's lease is not there: then nothing
	// was done.
	StepRun(ctx context.Context, s Step) (Stepped, error)
	// SettleRun brings the items that are claimed or out to what [Item.Settle] says of them, at most limit, and returns
	// the run and how many changed.
	SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, int, error)
	// RunItems returns a page of a run's items, by entry id.
	RunItems(ctx context.Context, id string, f ItemFilter) ([]Item, error)
	// SplitRun counts the entries of a run by topic, and by cause, at most so many causes, the most first.
	SplitRun(ctx context.Context, id string, causes int) ([]TopicCount, []CauseCount, error)
	// Split counts the entries that the filter picks by topic, the most first.
	Split(ctx context.Context, f dlq.Filter) ([]TopicCount, error)
}

// Step is what one transaction does for a run, in this order: record what was published, return what was not, skip,
// claim.
type Step struct {
	// Run and Holder name the run and the process whose lease it is. Required. Lease extends it from At.
	Run, Holder string
	At          time.Time
	Lease       time.Duration
	// Actor is in whose name entries change.
	Actor string
	// Published are claimed items that the broker confirmed: they are out. With ClosePublished their entries are
	// RESOLVED at once, and the items have succeeded.
	Published      []int64
	ClosePublished bool
	// Released are claimed items that the broker did not take: their entries are PENDING and they wait again.
	Released []Refusal
	// Skipped are waiting or claimed items that are given up. The entry of a claimed one is returned.
	Skipped []Refusal
	// Claims are waiting items to claim: their entries become RETRYING when their version is still the item's. Of those
	// that are not, [Item.Refused] says what happened to them.
	Claims []Claim
	// Known are entries of Published and Claims as the caller read them, or was given them by a claim, without their
	// bodies, by id. A store may take one for what is stored, instead of reading it again, as long as the stored
	// version is the same. May be nil.
	Known map[int64]*dlq.Entry
	// OutcomeTimeout is how long the claimed entries are kept for their outcome, ClaimTimeout how long a claim waits
	// for the record of its publish.
	OutcomeTimeout, ClaimTimeout time.Duration
}

// Refusal is an item that is not redriven, and why.
type Refusal struct {
	EntryID int64
	Detail  string
}

// Claim asks for an entry.
type Claim struct {
	EntryID, Version int64
	// Body, unless nil, becomes the entry's next revision with the claim: what the run's jq expression made of the
	// body.
	Body *dlq.Body
}

// Stepped is the answer to a [Step].
type Stepped struct {
	// Run is the run after the step.
	Run *Run
	// Claimed are the entries that are now ours, without Body, in the order of the claims; the others were skipped.
	Claimed []dlq.Entry
}

// RunFilter picks runs; a zero field does not filter.
type RunFilter struct {
	States    []State
	CreatedBy string
	// Active picks those for which there is something to do: they prepare, run, or have messages out.
	Active bool
}

// ItemFilter picks the items of a run.
type ItemFilter struct {
	// State, unless empty, must be equal.
	State ItemState
	// After continues behind this entry. Limit is at most how many: defaults to 50, at most [driver.MaxPage].
	After int64
	Limit int
}

// TopicCount is how many entries a topic has.
type TopicCount struct {
	Topic string `json:"topic"`
	Count int64  `json:"count"`
}
