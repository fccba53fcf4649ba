package dlq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Work carries redrive runs on, those of this process and those that other processes have left, until the context ends; then it
// records what is being published, gives the runs back and returns the context's error. Any number of processes may work: each run
// is held by one of them. It needs a Redriver.
func (m *Manager) Work(ctx context.Context) error {
	if m.redriver == nil {
		return fmt.Errorf("dlq: work: %w: this manager has no Redriver to publish with", ErrInvalid)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	driven := map[string]bool{}
	for {
		runs, err := m.activeRuns(ctx)
		if err != nil && ctx.Err() == nil {
			m.logger.WarnContext(ctx, "redrive runs could not be listed", "error", err)
		}
		for i := range runs {
			run := &runs[i]
			mu.Lock()
			busy := driven[run.ID] || run.Holder != "" && run.LeaseUntil.After(time.Now())
			driven[run.ID] = driven[run.ID] || !busy
			mu.Unlock()
			if busy {
				continue
			}
			wg.Go(func() {
				if err := m.drive(ctx, run.ID, true); err != nil && ctx.Err() == nil && !errors.Is(err, ErrLeaseLost) {
					m.logger.ErrorContext(ctx, "a redrive run cannot be carried on", "run", run.ID, "error", err)
				}
				mu.Lock()
				delete(driven, run.ID)
				mu.Unlock()
			})
		}
		timer := time.NewTimer(m.workEvery)
		select {
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

func (m *Manager) activeRuns(ctx context.Context) ([]Run, error) {
	var all []Run
	page := Page{Limit: MaxPage, Order: OldestFirst}
	for {
		runs, next, err := m.store.Runs(ctx, RunFilter{Active: true}, page)
		all = append(all, runs...)
		if err != nil || next == "" {
			return all, err
		}
		page.After = next
	}
}

// Drive carries one run on in the calling goroutine, and returns it when it has ended, is paused, has stopped or waits for approval.
// While another process holds it, Drive watches. A context that ends gives the run back: it can be driven on, here or elsewhere.
func (m *Manager) Drive(ctx context.Context, id string) (*Run, error) {
	if m.redriver == nil {
		return nil, fmt.Errorf("dlq: drive run %s: %w: this manager has no Redriver to publish with", id, ErrInvalid)
	}
	for {
		err := m.drive(ctx, id, false)
		if err != nil && ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err) // database/sql does not always say that the context was the reason
		}
		if err != nil && !errors.Is(err, ErrLeaseLost) {
			return nil, err
		}
		run, err := m.store.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		if run.State != RunPreparing && run.State != RunRunning {
			return run, nil
		}
		if err := wait(ctx, m.workEvery); err != nil {
			return run, err
		}
	}
}

// drive takes the lease, drives, and gives the lease back.
func (m *Manager) drive(ctx context.Context, id string, linger bool) error {
	holder := uuid.NewString()
	run, err := m.store.LeaseRun(ctx, id, holder, time.Now(), m.runLease)
	if err != nil {
		return err
	}
	d, err := m.newDriver(holder, run, linger)
	if err == nil {
		err = d.drive(ctx)
	}
	if errors.Is(err, ErrLeaseLost) {
		return err
	}
	giveBack, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainDeadline)
	defer cancel()
	if _, lost := m.store.LeaseRun(giveBack, id, holder, time.Now(), 0); lost != nil && !errors.Is(lost, ErrLeaseLost) {
		err = errors.Join(err, lost)
	}
	return err
}
