package dlqhttp

import (
	"context"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// The state of the program.
type (
	// Health is the state of the program and of each of its components; see [Config.Health].
	Health = wire.Health
	// Component is the state of one thing that the program needs.
	Component = wire.Component
)

// The states of a program and of a component.
const (
	StatusOK      = wire.StatusOK
	StatusFailing = wire.StatusFailing
)

// publicInterval is how old the health may be that a caller without credentials sees.
const publicInterval = 5 * time.Second

// publicHealth keeps what callers without credentials see: they cost the components one question in an interval,
// however many ask, and learn which of them fail, not why.
type publicHealth struct {
	mu   sync.Mutex
	at   time.Time
	kept Health
}

func (p *publicHealth) report(ctx context.Context, health func(context.Context) Health) Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < publicInterval {
		return p.kept
	}
	report := health(context.WithoutCancel(ctx)) // others wait for it too
	p.kept = Health{Status: report.Status, Components: make(map[string]Component, len(report.Components))}
	for name, c := range report.Components {
		p.kept.Components[name] = Component{Status: c.Status}
	}
	p.at = time.Now()
	return p.kept
}
