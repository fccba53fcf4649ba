package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/guarded"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// Work drives redrive runs, those of this process and those that other processes have left, until the context ends;
// then it records what is being published, releases the runs and returns the context's error. Any number of processes
// may work: each run is held by one of them. It needs a Redriver.
func (rn *Runner) Work(ctx context.Context) error {
	if rn.cfg.Redriver == nil {
		return fmt.Errorf("dlq: work: %w: this runner has no Redriver to publish with", dlq.ErrInvalid)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	driven := map[string]bool{}
	for {
		var runs []Run
		err := guarded.Call(func() (err error) {
			runs, err = rn.activeRuns(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil {
			rn.cfg.Logger.WarnContext(ctx, "redrive runs could not be listed", "error", err)
		}
		now := rn.now(ctx)
		for i := range runs {
			run := &runs[i]
			mu.Lock()
			busy := driven[run.ID] || run.Holder != "" && run.LeaseUntil.After(now)
			driven[run.ID] = driven[run.ID] || !busy
			mu.Unlock()
			if busy {
				continue
			}
			wg.Go(func() {
				err := guarded.Call(func() error { return rn.drive(ctx, run.ID, true) })
				if err != nil && ctx.Err() == nil && !errors.Is(err, ErrLeaseLost) {
					rn.cfg.Logger.ErrorContext(ctx, "a redrive run failed", "run", run.ID, "error", err)
				}
				mu.Lock()
				delete(driven, run.ID)
				mu.Unlock()
			})
		}
		select {
		case <-time.After(rn.cfg.WorkInterval):
		case <-rn.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// now is the time by which leases expire.
func (rn *Runner) now(ctx context.Context) time.Time { return driver.Now(ctx, rn.cfg.Store) }

func (rn *Runner) activeRuns(ctx context.Context) ([]Run, error) {
	var all []Run
	page := dlq.Page{Limit: driver.MaxPage, Order: driver.OldestFirst}
	for {
		runs, next, err := rn.runs.Runs(ctx, RunFilter{Active: true}, page)
		all = append(all, runs...)
		if err != nil || next == "" {
			return all, err
		}
		page.After = next
	}
}

// Drive drives one run in the calling goroutine, and returns it when it has ended, is paused, has stopped or waits for
// approval. While another process holds it, Drive watches. When the context ends it returns the run, which can be
// driven further, here or elsewhere.
func (rn *Runner) Drive(ctx context.Context, id string) (*Run, error) {
	if rn.cfg.Redriver == nil {
		return nil, fmt.Errorf("dlq: drive run %s: %w: this runner has no Redriver to publish with", id, dlq.ErrInvalid)
	}
	for {
		err := guarded.Call(func() error { return rn.drive(ctx, id, false) })
		if err != nil && ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err) // database/sql does not always return the context's error
		}
		if err != nil && !errors.Is(err, ErrLeaseLost) {
			return nil, err
		}
		run, err := rn.runs.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		if run.State != Preparing && run.State != Running {
			return run, nil
		}
		if err := wait.For(ctx, rn.cfg.WorkInterval); err != nil {
			return run, err
		}
	}
}

// drive acquires the lease, drives, and releases the lease.
func (rn *Runner) drive(ctx context.Context, id string, linger bool) error {
	holder := uuid.NewString()
	run, err := rn.runs.LeaseRun(ctx, id, holder, rn.now(ctx), rn.cfg.Lease)
	if err != nil {
		return err
	}
	if run.Abandoned >= MaxAbandoned && run.legal(ActionStop) {
		cause := fmt.Sprintf("the last %d processes that drove it died or hung before they sent anything",
			run.Abandoned)
		if run, err = rn.changeRun(ctx, id, ActionStop, dlq.By{Actor: "redrive", Note: cause}); errors.Is(err,
			dlq.ErrConflict) {
			run, err = rn.runs.Run(ctx, id) // someone was faster
		}
	}
	if err == nil {
		err = guarded.Call(func() error {
			d, err := rn.newDriver(holder, run, linger)
			if err != nil {
				return err
			}
			return d.drive(ctx)
		})
	}
	if isPanic(err) {
		err = errors.Join(err, rn.stopPanicking(ctx, id, err))
	}
	if errors.Is(err, ErrLeaseLost) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainDeadline)
	defer cancel()
	_, releaseErr := rn.runs.LeaseRun(ctx, id, holder, rn.now(ctx), 0)
	if releaseErr != nil && !errors.Is(releaseErr, ErrLeaseLost) {
		err = errors.Join(err, releaseErr)
	}
	return err
}

// stopPanicking stops a run whose driver panics: the next process that drives it would panic, too.
func (rn *Runner) stopPanicking(ctx context.Context, id string, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainDeadline)
	defer cancel()
	_, err := rn.changeRun(ctx, id, ActionStop, dlq.By{Actor: "redrive", Note: text.Clean(cause.Error(), text.MaxName)})
	if errors.Is(err, dlq.ErrConflict) {
		return nil // it is no longer running
	}
	return err
}

func isPanic(err error) bool {
	_, panicked := errors.AsType[*guarded.PanicError](err)
	return panicked
}

// Config configures what a [Runner] has in addition to its Manager.
type Config struct {
	// Targets are the other destinations to which a run may send messages (Spec.Target): an operator chooses a name, never
	// an address. Defaults to none: messages return to where they came from.
	Targets map[string]envelope.Origin
	// Lease is how long a process keeps a run without renewing: after that another one takes over. Defaults to 30 s.
	Lease time.Duration
	// WorkInterval is how often [Runner.Work] looks for runs of other processes. Defaults to 1 s.
	WorkInterval time.Duration
	// Batch is the maximum number of entries that a run claims in one transaction. Defaults to 1,000, which is
	// [driver.MaxPage] and the limit. A run begins with 250, and takes more while the broker confirms a batch within 250
	// ms, fewer when that takes more than a second.
	Batch int
	// Publishers is how many entries are published at once when the Redriver is not a [BatchRedriver]. Defaults to 256.
	Publishers int
}

// Runner redrives in bulk: by runs, and by rules that start runs. It is safe for concurrent use, in any number of
// processes. It need not be closed; [Runner.Work] and [Runner.Automate] end with their context.
type Runner struct {
	cfg   settings
	runs  Store
	audit func(ctx context.Context, entry int64) ([]driver.AuditRecord, error)
	wake  chan struct{}
}

// settings are those of a Runner and of its Manager.
type settings struct {
	dlq.ManagerConfig
	Config
}

// NewRunner makes a Runner with the store, the Redriver and the other settings of a Manager. The store, or one that it
// wraps, has to be a [Store]. The error reports every fault of the configuration.
func NewRunner(m *dlq.Manager, cfg Config) (*Runner, error) {
	if m == nil {
		return nil, fmt.Errorf("dlq: runner: %w: a manager is required", dlq.ErrInvalid)
	}
	var errs []error
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	// A transaction of a thousand items, or of ten thousand to freeze, may take a while. A lease that is lost meanwhile is
	// noticed.
	runs, ok := newRunnerStore(m.Config().Store, max(time.Minute, 2*cfg.Lease))
	if !ok {
		errs = append(errs, fmt.Errorf("%T keeps no runs, or is not open yet (dlq.WithStoreRequired waits for it)",
			m.Config().Store))
	}
	if cfg.Lease < 0 || cfg.WorkInterval < 0 || cfg.Publishers < 0 {
		errs = append(errs, errors.New("times and publishers must not be negative"))
	}
	if cfg.Batch < 0 || cfg.Batch > driver.MaxPage {
		errs = append(errs, fmt.Errorf("batch %d: from 1 to %d", cfg.Batch, driver.MaxPage))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("dlq: runner: %w: %w", dlq.ErrInvalid, err)
	}
	cfg.Targets, cfg.WorkInterval = maps.Clone(cfg.Targets), cmp.Or(cfg.WorkInterval, time.Second)
	cfg.Batch, cfg.Publishers = cmp.Or(cfg.Batch, driver.MaxPage), cmp.Or(cfg.Publishers, 256)
	return &Runner{settings{m.Config(), cfg}, runs, m.Audit, make(chan struct{}, 1)}, nil
}

// Targets lists the names of [Config.Targets], sorted.
func (rn *Runner) Targets() []string { return slices.Sorted(maps.Keys(rn.cfg.Targets)) }
