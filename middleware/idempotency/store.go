package idempotency

import (
	"context"
	"errors"
	"time"
)

// Key is what is done once: the effect of one message on one consumer.
type Key struct {
	// Consumer that handles the message; services that share a store keep theirs apart by it.
	Consumer string
	// MessageID as envelope.Identify gives it.
	MessageID string
}

// State is what a store knows about a key.
type State int

const (
	// Claimed says that the key was free, and is now the caller's.
	Claimed State = iota + 1
	// Done says that the effect has happened.
	Done
	// Busy says that another owner is at it, and its lease has not ended.
	Busy
)

// Record is a store's answer to a claim.
type Record struct {
	State State
	// Outcome given to Complete, when Done.
	Outcome []byte
	// Remaining time of the other owner's lease, when Busy.
	Remaining time.Duration
}

// ErrLost says that the claim is not the caller's any more: its lease has ended, and another owner may be at it.
var ErrLost = errors.New("the claim on the message is lost to another owner")

// Store remembers keys. Each method is atomic, durable when it returns nil, and safe for concurrent use, also by
// several processes. Owners are random numbers, one per claim.
type Store interface {
	// Claim makes key the owner's for the time of the lease if it is free, or if its owner's lease has ended.
	Claim(ctx context.Context, key Key, owner int64, lease time.Duration) (Record, error)
	// Renew makes the lease end after lease from now. It returns ErrLost if key is not the owner's, or is done.
	Renew(ctx context.Context, key Key, owner int64, lease time.Duration) error
	// Complete marks key as done, and keeps outcome with it for retention from now. It may be repeated by the owner. It
	// returns ErrLost if key is not the owner's.
	Complete(ctx context.Context, key Key, owner int64, outcome []byte, retention time.Duration) error
	// Release forgets key, if it is the owner's and not done. Releasing anything else does nothing.
	Release(ctx context.Context, key Key, owner int64) error
}
