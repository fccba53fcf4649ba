package idempotency

import (
	"context"
	"errors"
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
