package dlq

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

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
