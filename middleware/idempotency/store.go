package idempotency

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Key identifies an effect that happens once: that of one message on one consumer.
type Key struct {
	// Consumer handles the message; services that share a store use different ones.
	Consumer string
	// MessageID is the id from envelope.Identify.
	MessageID string
}

// State is the state of a key in a store.
type State int

const (
	// Claimed means that the key was free and is now the caller's.
	Claimed State = iota + 1
	// Done means that the effect has happened.
	Done
	// Busy means that another owner's lease has not ended.
	Busy
)

// Record is the result of a claim.
type Record struct {
	State State
	// Outcome given to Complete, when Done.
	Outcome []byte
	// Remaining time of the other owner's lease, when Busy.
	Remaining time.Duration
}

// ErrLost means that the claim is no longer the caller's: its lease has ended, and another owner may be handling the
// message.
var ErrLost = errors.New("the claim on the message is lost to another owner")

// Store records keys. Each method is atomic, durable when it returns nil, and safe for concurrent use, also across
// processes. Owners are random numbers, one per claim.
type Store interface {
	// Claim gives key to the owner for the duration of the lease if it is free, or if its owner's lease has ended.
	Claim(ctx context.Context, key Key, owner int64, lease time.Duration) (Record, error)
	// Renew makes the lease end after lease from now. It returns ErrLost if key is not the owner's, or is done.
	Renew(ctx context.Context, key Key, owner int64, lease time.Duration) error
	// Complete marks key as done, and keeps outcome with it for retention from now. The owner may repeat it. It returns
	// ErrLost if key is not the owner's.
	Complete(ctx context.Context, key Key, owner int64, outcome []byte, retention time.Duration) error
	// Release frees key if it is the owner's and not done. Otherwise it does nothing.
	Release(ctx context.Context, key Key, owner int64) error
}

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
