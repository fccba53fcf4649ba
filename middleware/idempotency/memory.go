package idempotency

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Memory is a Store for tests and for consumers of one process that may forget everything when they stop. Inside a
// testing/synctest bubble it uses virtual time.
type Memory struct {
	mu      sync.Mutex
	entries map[Key]*entry
	sweepAt int
}

type entry struct {
	owner   int64
	done    bool
	outcome []byte
	until   time.Time // end of the lease, or of the retention
}

var _ Store = (*Memory)(nil)

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{entries: map[Key]*entry{}, sweepAt: 1024} }

// Len returns the number of keys that are claimed or done.
func (s *Memory) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(time.Now())
	return len(s.entries)
}

// Claim implements Store.
func (s *Memory) Claim(_ context.Context, key Key, owner int64, lease time.Duration) (Record, error) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.entries) >= s.sweepAt {
		s.sweep(now)
		s.sweepAt = max(1024, 2*len(s.entries))
	}
	if e := s.entries[key]; e != nil && now.Before(e.until) {
		if e.done {
			return Record{State: Done, Outcome: slices.Clone(e.outcome)}, nil
		}
		return Record{State: Busy, Remaining: e.until.Sub(now)}, nil
	}
	s.entries[key] = &entry{owner: owner, until: now.Add(lease)}
	return Record{State: Claimed}, nil
}

// sweep removes expired entries. Claim calls it when the number of entries may have doubled.
func (s *Memory) sweep(now time.Time) {
	for key, e := range s.entries {
		if !now.Before(e.until) {
			delete(s.entries, key)
		}
	}
}

// Renew implements Store.
func (s *Memory) Renew(_ context.Context, key Key, owner int64, lease time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil || e.owner != owner || e.done {
		return ErrLost
	}
	e.until = time.Now().Add(lease)
	return nil
}

// Complete implements Store.
func (s *Memory) Complete(_ context.Context, key Key, owner int64, outcome []byte, retention time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil || e.owner != owner {
		return ErrLost
	}
	e.done, e.outcome, e.until = true, slices.Clone(outcome), time.Now().Add(retention)
	return nil
}

// Release implements Store.
func (s *Memory) Release(_ context.Context, key Key, owner int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[key]; e != nil && e.owner == owner && !e.done {
		delete(s.entries, key)
	}
	return nil
}
