package driver

import (
	"context"
	"fmt"
	"time"
)

// NoticeStore is a [Store] that remembers what people were notified of and which causes they do not want to hear of, so
// that one of several servers notifies them, and none does it again after a restart.
type NoticeStore interface {
	Store
	// HoldNotices makes a process the one that notifies until a time, and reports whether it is. Another one is as long
	// as its own time has not come.
	HoldNotices(ctx context.Context, process string, at, until time.Time) (bool, error)
	// Notices returns those since a time, and the first notice of each receiver, which has no ID: from then on it is
	// served.
	Notices(ctx context.Context, since time.Time) ([]Notice, error)
	// PutNotice notes that a receiver has had a notice. One that is there stays as it is, without an error.
	PutNotice(ctx context.Context, n Notice) error
	// Mute makes notifications leave a cause out, in place of what was said of it before.
	Mute(ctx context.Context, m Mute) error
	// Unmute ends that. The error wraps ErrNotFound when the cause is not muted.
	Unmute(ctx context.Context, fingerprint string, by By, at time.Time) error
	// Mutes returns the mutes that have not ended, the latest first.
	Mutes(ctx context.Context, at time.Time) ([]Mute, error)
}

// Actions on causes, for the audit log; the detail DetailFingerprint names the cause.
const (
	ActionMute        Action = "mute"
	ActionUnmute      Action = "unmute"
	ActionNote        Action = "note" // what a person said of it
	DetailFingerprint        = "fingerprint"
)

// Notice is what a receiver was notified of.
type Notice struct {
	// Receiver is required. ID is that of what happened; At is when the receiver had it.
	Receiver, ID string
	At           time.Time
}

// Mute is a cause without notifications.
type Mute struct {
	// Fingerprint, By and At are required. A zero Until is for good.
	Fingerprint string
	By, Note    string
	At, Until   time.Time
}

// Validate reports what is missing in the mute.
func (m *Mute) Validate() error {
	if m.Fingerprint == "" || len(m.Fingerprint) > maxPerson || m.By == "" || m.At.IsZero() || !m.Until.IsZero() &&
		!m.Until.After(m.At) {
		return fmt.Errorf("%w: a mute needs a cause, an actor, and an end in the future if any", ErrInvalid)
	}
	return nil
}
