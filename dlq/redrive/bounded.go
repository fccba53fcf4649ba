package redrive

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// boundedRuns puts a timeout on each call of a driver to the store: a call that hangs would hold its run, lease or not,
// until the process ends.
type boundedRuns struct {
	Store

	timeout time.Duration
}

// Run implements [Store].
func (s *boundedRuns) Run(ctx context.Context, id string) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.Run(ctx, id)
}

// Runs implements [Store].
func (s *boundedRuns) Runs(ctx context.Context, f RunFilter, p driver.Page) ([]Run, string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.Runs(ctx, f, p)
}

// ChangeRun implements [Store].
func (s *boundedRuns) ChangeRun(ctx context.Context, r *Run, audit driver.AuditRecord) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.ChangeRun(ctx, r, audit)
}

// LeaseRun implements [Store].
func (s *boundedRuns) LeaseRun(ctx context.Context, id, holder string, at time.Time, lease time.Duration) (*Run,
	error,
) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.LeaseRun(ctx, id, holder, at, lease)
}

// FreezeRun implements [Store].
func (s *boundedRuns) FreezeRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.FreezeRun(ctx, id, holder, at, limit)
}

// NextItems implements [Store].
func (s *boundedRuns) NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]Item, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.NextItems(ctx, id, after, limit, bytes)
}

// StepRun implements [Store].
func (s *boundedRuns) StepRun(ctx context.Context, step Step) (Stepped, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.StepRun(ctx, step)
}

// SettleRun implements [Store].
func (s *boundedRuns) SettleRun(ctx context.Context, id, holder string, at time.Time, limit int) (*Run, int, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.Store.SettleRun(ctx, id, holder, at, limit)
}
