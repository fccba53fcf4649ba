package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// NoticeStore is a [Store] that records notifications and muted causes, so that only one of several servers notifies
// people, and never twice after a restart.
type NoticeStore interface {
	Store
	// HoldNotices makes a process the notifier until a time, and reports whether it is. Until an earlier holder's time is
	// over, it is not.
	HoldNotices(ctx context.Context, process string, at, until time.Time) (bool, error)
	// Notices returns the notices since a time, and each receiver's first one, which has no ID and marks when its
	// notifications began.
	Notices(ctx context.Context, since time.Time) ([]Notice, error)
	// PutNotice records that a receiver got a notice. If it exists already, it stays unchanged, without an error.
	PutNotice(ctx context.Context, n Notice) error
	// Mute suppresses notifications of a cause, and replaces an earlier mute.
	Mute(ctx context.Context, m Mute) error
	// Unmute ends a mute. The error wraps ErrNotFound when the cause is not muted.
	Unmute(ctx context.Context, fingerprint string, by By, at time.Time) error
	// Mutes returns the current mutes, the latest first.
	Mutes(ctx context.Context, at time.Time) ([]Mute, error)
}

// Actions on causes, for the audit log; the detail DetailFingerprint names the cause.
const (
	ActionMute        Action = "mute"
	ActionUnmute      Action = "unmute"
	ActionNote        Action = "note" // a person's comment
	DetailFingerprint        = "fingerprint"
)

// Notice is a notification that a receiver got.
type Notice struct {
	// Receiver is required. ID identifies the event; At is when the receiver got it.
	Receiver, ID string
	At           time.Time
}

// Mute is a cause without notifications; see [CheckMute].
type Mute = wire.Mute

// CheckMute reports what is missing in a mute: Fingerprint, By and At are required. A zero Until means forever.
func CheckMute(m *Mute) error {
	if m.Fingerprint == "" || len(m.Fingerprint) > maxPerson || m.By == "" || m.At.IsZero() || !m.Until.IsZero() &&
		!m.Until.After(m.At) {
		return fmt.Errorf("%w: a mute needs a cause, an actor, and an end, if any, in the future", ErrInvalid)
	}
	return nil
}
