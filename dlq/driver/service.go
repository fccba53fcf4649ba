package driver

import (
	"context"
	"time"
)

// ServiceStore is a [Store] in which services report their current state, and learn whether an operator has paused
// their intake.
type ServiceStore interface {
	Store
	// Beat stores the report of a process, replacing its last one, and returns the pause of its service.
	Beat(ctx context.Context, report *ServiceReport) (IntakePause, error)
	// Services returns, by name, the services with a report since then or that are paused.
	Services(ctx context.Context, since time.Time) ([]Service, error)
	// PauseIntake stores whether the processes of a service are to pause, with its audit record.
	PauseIntake(ctx context.Context, pause IntakePause, audit AuditRecord) error
}

// Actions on a whole service, for the audit log.
const (
	// ActionPauseIntake stops the processes of a service from receiving, ActionResumeIntake resumes it.
	ActionPauseIntake  Action = "pause_intake"
	ActionResumeIntake Action = "resume_intake"
)

// Service is a service and the last reports of its processes.
type Service struct {
	Name      string
	Pause     IntakePause
	Processes []ServiceReport
}

// IntakePause is whether a service's intake is paused, and who decided that.
type IntakePause struct {
	Service string
	Paused  bool
	By      string
	At      time.Time
}

// ServiceReport is the current state of one process of a service, at the moment At.
type ServiceReport struct {
	Service string    `json:"service"`
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	// CanPause means that the process has a gate; Paused means that the gate is closed.
	CanPause bool `json:"can_pause,omitzero"`
	Paused   bool `json:"paused,omitzero"`
	// Problem is why intake has not resumed after a pause.
	Problem  string         `json:"problem,omitzero"`
	Queues   []ServiceQueue `json:"queues,omitzero"`
	Circuits []Circuit      `json:"circuits,omitzero"`
}

// ServiceQueue is the state of one topic and consumer in a process.
type ServiceQueue struct {
	Topic    string `json:"topic"`
	Consumer string `json:"consumer,omitzero"`
	Handler  string `json:"handler,omitzero"`
	// Handling is how many messages its handlers have, Since when the oldest of them began.
	Handling int       `json:"handling,omitzero"`
	Since    time.Time `json:"since,omitzero"`
	// Waiting are the retries that this process has scheduled and that are not due yet, Next when the first one is.
	Waiting int64     `json:"waiting,omitzero"`
	Next    time.Time `json:"next,omitzero"`
	// Due groups the waiting ones by the time left.
	Due []DueCount `json:"due,omitzero"`
}

// DueCount is how many retries are due within a time, but not within the previous one.
type DueCount struct {
	Within   time.Duration `json:"within"` // 0 is everything later
	Messages int64         `json:"messages"`
}

// Circuit is a circuit breaker that is not closed.
type Circuit struct {
	Key   string    `json:"key"`
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
}
