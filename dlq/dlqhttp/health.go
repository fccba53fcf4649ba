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
	// Component is the state of a component that the program needs.
	Component = wire.Component
)

// The states of a program and of a component.
const (
	StatusOK      = wire.StatusOK
	StatusFailing = wire.StatusFailing
)

// publicInterval is the maximum age of the health for callers without credentials.
const publicInterval = 5 * time.Second

// publicHealth caches the health for callers without credentials: they cost the components one check per interval, no
// matter how many ask, and learn which of them fail, but not why.
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
	report := health(context.WithoutCancel(ctx)) // others wait for it, too
	p.kept = Health{Status: report.Status, Components: make(map[string]Component, len(report.Components))}
	for name, c := range report.Components {
		p.kept.Components[name] = Component{Status: c.Status}
	}
	p.at = time.Now()
	return p.kept
}
