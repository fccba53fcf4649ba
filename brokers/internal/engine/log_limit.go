package engine

import (
	"log/slog"
	"sync"
	"time"
)

// logLimit keeps one cause from filling the log: what failed for the same reason within quiet is one line, and the
// next one reports how many there were.
type logLimit struct {
	mu    sync.Mutex
	known map[complaint]silence
}

type complaint struct{ what, cause string }

type silence struct {
	since time.Time
	times int
}

const (
	quiet         = 30 * time.Second
	maxComplaints = 256
)

// warn logs what failed and why, unless it has done so a moment ago.
func (b *Broker) warn(what string, err error, args ...any) {
	key := complaint{what, err.Error()}
	now := time.Now()
	c := &b.complaints
	c.mu.Lock()
	s := c.known[key]
	if now.Sub(s.since) < quiet {
		c.known[key] = silence{s.since, s.times + 1}
		c.mu.Unlock()
		return
	}
	if c.known == nil || len(c.known) >= maxComplaints {
		c.known = map[complaint]silence{}
	}
	c.known[key] = silence{since: now}
	c.mu.Unlock()
	if s.times > 0 {
		args = append(args, slog.Int("times_before", s.times))
	}
	//nolint:sloglint // the callers' sentences are constants
	b.cfg.Logger.Warn(b.traits.Name+": "+what, append(args, slog.Any("error", err))...)
}
