package redrive

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Observer is a [dlq.Observer] that is also told of redrive runs. A [Runner] finds it by the store that it is given.
type Observer interface {
	// Stepped is notified of a step of a redrive run that is in the store.
	Stepped(s Step)
	// Failed is notified that the store did not answer; op is step.
	Failed(op string, err error)
}

// runStore finds the part of a store that keeps runs, and tells its observer of their steps.
func runStore(s driver.Store) (Store, bool) {
	runs, ok := driver.As[Store](s)
	if !ok {
		return nil, false
	}
	if observed, ok := driver.As[interface{ Observer() dlq.Observer }](s); ok {
		if o, ok := observed.Observer().(Observer); ok {
			return &observedRuns{runs, o}, true
		}
	}
	return runs, true
}

type observedRuns struct {
	Store

	observer Observer
}

// StepRun implements [Store].
func (s *observedRuns) StepRun(ctx context.Context, step Step) (Stepped, error) {
	stepped, err := s.Store.StepRun(ctx, step)
	if err != nil {
		s.observer.Failed("step", err)
		return stepped, err
	}
	s.observer.Stepped(step)
	return stepped, nil
}
