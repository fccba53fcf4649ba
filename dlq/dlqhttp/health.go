package dlqhttp

import "github.com/redrive-go/redrive/dlq/dlqhttp/internal/health"

// The state of the program.
type (
	// Health is the state of the program and of each of its components; see [Config.Health].
	Health = health.Health
	// Component is the state of one thing that the program needs.
	Component = health.Component
)

// The states of a program and of a component.
const (
	StatusOK      = health.StatusOK
	StatusFailing = health.StatusFailing
)
