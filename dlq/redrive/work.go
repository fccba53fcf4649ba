package redrive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/internal/wait"
)

// Work drives redrive runs, those of this process and those that other processes have left, until the context ends;
// then it records what is being published, releases the runs and returns the context's error. Any number of processes
// may work: each run is held by one of them. It needs a Redriver.
func (rn *Runner) Work(ctx context.Context) error {
	if rn.redriver == nil {
		return fmt.Errorf("dlq: work: %w: this runner has no Redriver to publish with", dlq.ErrInvalid)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	driven := map[string]bool{}
	for {
		var runs []Run
		err := guard(func() (err error) {
			runs, err = rn.activeRuns(ctx)
			return err
		})
		if err != nil && ctx.Err() == nil {
			rn.logger.WarnContext(ctx, "redrive runs could not be listed", "error", err)
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
				err := guard(func() error { return rn.drive(ctx, run.ID, true) })
				if err != nil && ctx.Err() == nil && !errors.Is(err, ErrLeaseLost) {
					rn.logger.ErrorContext(ctx, "a redrive run failed", "run", run.ID, "error", err)
				}
				mu.Lock()
				delete(driven, run.ID)
				mu.Unlock()
			})
		}
		timer := time.NewTimer(rn.workEvery)
		select {
		case <-timer.C:
		case <-rn.wake:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// now is the time by which leases expire.
func (rn *Runner) now(ctx context.Context) time.Time { return driver.Now(ctx, rn.store) }

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
	if rn.redriver == nil {
		return nil, fmt.Errorf("dlq: drive run %s: %w: this runner has no Redriver to publish with", id, dlq.ErrInvalid)
	}
	for {
		err := guard(func() error { return rn.drive(ctx, id, false) })
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
		if err := wait.For(ctx, rn.workEvery); err != nil {
			return run, err
		}
	}
}

// drive acquires the lease, drives, and releases the lease.
func (rn *Runner) drive(ctx context.Context, id string, linger bool) error {
	holder := uuid.NewString()
	run, err := rn.runs.LeaseRun(ctx, id, holder, rn.now(ctx), rn.runLease)
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
		err = rn.driveHeld(ctx, holder, run, linger)
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

// driveHeld drives a run that the holder has leased.
func (rn *Runner) driveHeld(ctx context.Context, holder string, run *Run, linger bool) error {
	d, err := rn.newDriver(holder, run, linger)
	if err != nil {
		return err
	}
	return guard(func() error { return d.drive(ctx) })
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

// panicError is a panic as an error, with the stack for the log.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("dlq: run: panic: %v", e.value) }

// LogValue adds the stack.
func (e *panicError) LogValue() slog.Value {
	return slog.GroupValue(slog.String("error", e.Error()), slog.String("stack", string(e.stack)))
}

func isPanic(err error) bool {
	_, panicked := errors.AsType[*panicError](err)
	return panicked
}

// guard turns a panic into an error: the process serves other runs, and more than runs.
func guard(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &panicError{value, debug.Stack()}
		}
	}()
	return do()
}
