package redrive

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/envelope"
)

// Config configures a [Runner].
type Config struct {
	// Store has the dead letters and keeps runs: it, or a store that it wraps, is a [Store]. Required.
	Store driver.Store
	// Redriver publishes. With nil, the Runner starts, shows and changes runs, and leaves the redriving to other
	// processes.
	Redriver dlq.Redriver
	// Logger is where runs are logged. Defaults to slog.Default().
	Logger *slog.Logger
	// PublishTimeout bounds the publish of one batch. A claim on an entry lasts twice as long. Defaults to 30 s.
	PublishTimeout time.Duration
	// OutcomeTimeout is the default of Spec.OutcomeTimeout. Defaults to 1 h.
	OutcomeTimeout time.Duration
	// Targets are the other destinations to which a run may send messages (Spec.Target): an operator chooses a name, never
	// an address. Defaults to none: messages return to where they came from.
	Targets map[string]envelope.Origin
	// Approval makes a run wait for a second person when its creator would exceed what they may send alone, counting
	// everything else that they sent within the window. Runs that edit or have another target always wait. Use the same in
	// dlq.ManagerConfig. Nil means no approval.
	Approval *dlq.Approval
	// Lease is how long a process keeps a run without renewing: after that another one takes over. Defaults to 30 s.
	Lease time.Duration
	// WorkInterval is how often [Runner.Work] looks for runs of other processes. Defaults to 1 s.
	WorkInterval time.Duration
	// Batch is the maximum number of entries that a run claims in one transaction. Defaults to 1,000, which is
	// [driver.MaxPage] and the limit. A run begins with 250, and takes more while the broker confirms a batch within 250
	// ms, fewer when that takes more than a second.
	Batch int
	// JQ evaluates the expressions of runs. Defaults to [payload.InProcess], which does not limit memory; a server should
	// use a [payload.Child].
	JQ payload.Evaluator
	// Publishers is how many entries are published at once when the Redriver is not a [BatchRedriver]. Defaults to 256.
	Publishers int
}

// Runner redrives in bulk: by runs, and by rules that start runs. It is safe for concurrent use, in any number of
// processes. It need not be closed; [Runner.Work] and [Runner.Automate] end with their context.
type Runner struct {
	store        driver.Store
	runs         Store
	redriver     dlq.Redriver
	logger       *slog.Logger
	publishTime  time.Duration
	outcomeLease time.Duration

	targets    map[string]envelope.Origin
	approval   *dlq.Approval // nil: no run needs approval
	runLease   time.Duration
	workEvery  time.Duration
	batch      int
	publishers int
	jq         payload.Evaluator
	wake       chan struct{}
}

// NewRunner makes a Runner. The error reports every fault of the configuration.
func NewRunner(cfg Config) (*Runner, error) {
	var errs []error
	lease := cmp.Or(cfg.Lease, 30*time.Second)
	// A transaction of a thousand items, or of ten thousand to freeze, may take a while. A lease that is lost meanwhile is
	// noticed.
	runs, ok := newRunnerStore(cfg.Store, max(time.Minute, 2*lease))
	switch {
	case cfg.Store == nil:
		errs = append(errs, errors.New("a store is required"))
	case !ok:
		errs = append(errs, fmt.Errorf("%T keeps no runs, or is not open yet (dlq.WithStoreRequired waits for it)",
			cfg.Store))
	}
	if cfg.PublishTimeout < 0 || cfg.OutcomeTimeout < 0 || cfg.Lease < 0 || cfg.WorkInterval < 0 || cfg.Publishers < 0 {
		errs = append(errs, errors.New("times and publishers must not be negative"))
	}
	if cfg.Batch < 0 || cfg.Batch > driver.MaxPage {
		errs = append(errs, fmt.Errorf("batch %d: from 1 to %d", cfg.Batch, driver.MaxPage))
	}
	if cfg.Approval != nil {
		resolved, err := cfg.Approval.Resolve()
		cfg.Approval = &resolved
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dlq: runner: %w: %w", dlq.ErrInvalid, err)
	}
	rn := &Runner{
		store: cfg.Store, runs: runs, redriver: cfg.Redriver, logger: cmp.Or(cfg.Logger, slog.Default()),
		targets: maps.Clone(cfg.Targets), approval: cfg.Approval,
		publishTime: cmp.Or(cfg.PublishTimeout, 30*time.Second), outcomeLease: cmp.Or(cfg.OutcomeTimeout, time.Hour),
		runLease: lease, workEvery: cmp.Or(cfg.WorkInterval, time.Second),
		batch: cmp.Or(cfg.Batch, driver.MaxPage), publishers: cmp.Or(cfg.Publishers, 256), wake: make(chan struct{}, 1),
	}
	if rn.jq = cfg.JQ; rn.jq == nil {
		rn.jq = &payload.InProcess{}
	}
	return rn, nil
}

// Targets lists the names of [Config.Targets], sorted.
func (rn *Runner) Targets() []string { return slices.Sorted(maps.Keys(rn.targets)) }
