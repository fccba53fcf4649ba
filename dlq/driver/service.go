package driver

import (
	"context"
	"time"
)

// ServiceStore is a [Store] through which services report what they are doing now, and learn whether an operator has
// paused their intake.
type ServiceStore interface {
	Store
	// Beat keeps the report of a process in place of its last one, and returns the pause of its service.
	Beat(ctx context.Context, report *ServiceReport) (IntakePause, error)
	// Services returns the services of which a process has reported since then, or that are paused, by name.
	Services(ctx context.Context, since time.Time) ([]Service, error)
	// PauseIntake stores what the processes of a service are to do, with its audit record.
	PauseIntake(ctx context.Context, pause IntakePause, audit AuditRecord) error
}

// Actions on a whole service, as the audit log has them.
const (
	// ActionPauseIntake makes the processes of a service receive nothing, ActionResumeIntake lets them again.
	ActionPauseIntake  Action = "pause_intake"
	ActionResumeIntake Action = "resume_intake"
)

// Service is a service and the last reports of its processes.
type Service struct {
	Name      string
	Pause     IntakePause
	Processes []ServiceReport
}

// IntakePause reports whether a service is to receive messages, and who wanted it so.
type IntakePause struct {
	Service string
	Paused  bool
	By      string
	At      time.Time
}

// ServiceReport is what one process of a service does now. It is that of the moment At: readers compare that with the
// clock.
type ServiceReport struct {
	Service string    `json:"service"`
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	// CanPause means that intake goes through a gate that a pause closes; Paused, that it is closed.
	CanPause bool `json:"can_pause,omitzero"`
	Paused   bool `json:"paused,omitzero"`
	// Problem is why intake has not come back after a pause.
	Problem  string         `json:"problem,omitzero"`
	Queues   []ServiceQueue `json:"queues,omitzero"`
	Circuits []Circuit      `json:"circuits,omitzero"`
}

// ServiceQueue is what a process has of one topic and consumer.
type ServiceQueue struct {
	Topic    string `json:"topic"`
	Consumer string `json:"consumer,omitzero"`
	Handler  string `json:"handler,omitzero"`
	// Handling is how many messages its handler has now, Since when the one that has been there the longest began.
	Handling int       `json:"handling,omitzero"`
	Since    time.Time `json:"since,omitzero"`
	// Waiting are the retries that this process has scheduled and that are not due yet, Next when the first one is.
	Waiting int64     `json:"waiting,omitzero"`
	Next    time.Time `json:"next,omitzero"`
	// Due splits the waiting ones by the time that is left when the report is made.
	Due []DueCount `json:"due,omitzero"`
}

// DueCount is how many retries are due within a time, and not within the one before.
type DueCount struct {
	Within   time.Duration `json:"within"` // 0 is later than all others
	Messages int64         `json:"messages"`
}

// Circuit is a circuit breaker that is not closed.
type Circuit struct {
	Key   string    `json:"key"`
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
}
