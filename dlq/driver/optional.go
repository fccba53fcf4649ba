package driver

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/wire"
)

// ArchiveStore is a [Store] that can restore purged entries from its archive.
type ArchiveStore interface {
	Store
	// Unarchive moves entries back from the archive, unchanged and with their ids, and records it in the audit log. It
	// returns the ids of the restored entries: those in the archive whose delivery has not been dead-lettered again
	// since.
	Unarchive(ctx context.Context, by By, at time.Time, ids ...int64) ([]int64, error)
}

// RecordStore is a [Store] with an audit log for events that change no entry.
type RecordStore interface {
	Store
	// Record appends all records or none.
	Record(ctx context.Context, records ...AuditRecord) error
}

// MonthStore is a [Store] that may have a table for each month.
type MonthStore interface {
	Store
	// PurgeMonths removes whole months of entries that Purge would remove one by one: months in which nearly all entries
	// are to be purged. It returns how many entries, and ignores Purge.Limit.
	PurgeMonths(ctx context.Context, p Purge) (int, error)
}

// TxStore is a [Store] that can store dead letters in a caller's transaction on the same database.
type TxStore interface {
	Store
	// PutTx is Put in tx: the letters are durable when tx commits. If it fails, tx is as before and still usable, or it is
	// rolled back, and its Commit fails.
	PutTx(ctx context.Context, tx *sql.Tx, letters ...*Entry) ([]Receipt, error)
}

// As returns an optional interface of a store, or of a store that it wraps: wrappers have a method Unwrap() Store. Do
// not use a type assertion, which silently fails on a wrapped store.
func As[T any](s Store) (T, bool) {
	for {
		if found, ok := s.(T); ok {
			return found, true
		}
		wrapped, ok := s.(interface{ Unwrap() Store })
		if !ok {
			var none T
			return none, false
		}
		s = wrapped.Unwrap()
	}
}

// Clock is a [Store] with a clock that is common to all processes.
type Clock interface {
	Store
	// Now returns the store's time. It has no error: if the store does not answer, the call that needs the time fails
	// anyway.
	Now(ctx context.Context) time.Time
}

// Now returns the time for decisions that processes on one store share: leases, claims, expiry, and the times of
// changes. It is the store's, because the clocks of machines differ; if the store has none, it is the process's.
func Now(ctx context.Context, s Store) time.Time {
	if clock, ok := As[Clock](s); ok {
		return clock.Now(ctx)
	}
	return time.Now()
}

// LedgerStore is a [Store] that counts the messages that a person sends, over all processes and ways of sending.
type LedgerStore interface {
	Store
	// Reserve records that a person is about to send, unless that would exceed the limit within the window: then it
	// returns false and records nothing. Open reservations count whatever their age. Reserving a key again replaces its
	// reservation. Concurrent calls for one person are serialized, across all processes.
	Reserve(ctx context.Context, r Reservation) (bool, error)
	// Unreserve removes a reservation, because nothing was sent. A missing key is not an error.
	Unreserve(ctx context.Context, key string) error
}

// Reservation is what someone is about to send.
type Reservation struct {
	// Key names it: "run <id>" for a run, which the store closes when the run ends. Required.
	Key string
	// Actor is who sends. Required.
	Actor string
	// Entries is how many; with the others of the Window before At they may be at most Limit.
	Entries, Limit int64
	At             time.Time
	Window         time.Duration
	// Open means that it is sent over time: it counts until it is closed.
	Open bool
}

// Validate reports what is missing in the reservation.
func (r *Reservation) Validate() error {
	if r.Key == "" || Person(r.Actor) == "" || r.At.IsZero() || r.Window <= 0 || r.Entries < 0 || r.Limit < 0 {
		return fmt.Errorf("%w: a reservation needs a key, an actor, a time and a window", ErrInvalid)
	}
	return nil
}

// maxPerson fits the columns of all databases.
const maxPerson = 240

// Person normalizes an actor's name for comparing persons: case and surrounding spaces do not matter.
func Person(actor string) string {
	return text.Clean(strings.ToLower(strings.TrimSpace(actor)), maxPerson)
}

// RunKey is the key of a run's reservation.
func RunKey(id string) string { return "run " + id }

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

// PeopleStore is a [Store] that keeps the tokens of an HTTP server and the sessions of people who logged in. It stores
// only their digests, so that reading the store is not enough to log in.
type PeopleStore interface {
	Store
	// PutToken stores a token. The error wraps ErrConflict when its name or digest exists already, even if that token was
	// revoked.
	PutToken(ctx context.Context, t Token) error
	// Tokens returns all tokens by name, including revoked and expired ones.
	Tokens(ctx context.Context) ([]Token, error)
	// Token returns the token with a digest. The error wraps ErrNotFound if it does not exist.
	Token(ctx context.Context, digest string) (*Token, error)
	// UseToken records that a token was used.
	UseToken(ctx context.Context, digest string, at time.Time) error
	// RevokeToken revokes a token. The error wraps ErrNotFound if no unrevoked one has the name.
	RevokeToken(ctx context.Context, name string, by By, at time.Time) error
	// PutSession stores a session, and removes those that had expired when it began.
	PutSession(ctx context.Context, s Session) error
	// Session returns the session with a digest. The error wraps ErrNotFound if it does not exist or has expired.
	Session(ctx context.Context, digest string, at time.Time) (*Session, error)
	// EndSession removes a session. A missing one is not an error.
	EndSession(ctx context.Context, digest string) error
}

// Actions on tokens and sessions, for the audit log.
const (
	ActionCreateToken Action = "token create"
	ActionRevokeToken Action = "token revoke"
	ActionLogin       Action = "login"
	ActionLogout      Action = "logout"
)

// Token is a bearer token of an HTTP server, without the token itself.
type Token struct {
	// Name appears in the audit log, Role is what its owner may do. All three are required.
	Name   string `json:"name"`
	Role   string `json:"role"`
	Digest string `json:"-"`
	// CreatedAt and CreatedBy are required. A zero ExpiresAt means never; zero UsedAt and RevokedAt mean not yet.
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	UsedAt    time.Time `json:"used_at,omitzero"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
}

// Valid reports whether the token can be used at a time.
func (t *Token) Valid(at time.Time) bool {
	return t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || at.Before(t.ExpiresAt))
}

// Validate reports what is missing in the token.
func (t *Token) Validate() error {
	if t.Name == "" || len(t.Name) > maxPerson || t.Role == "" || t.Digest == "" || t.CreatedBy == "" ||
		t.CreatedAt.IsZero() {
		return fmt.Errorf("%w: a token needs a name, a role, a digest, a time and a creator", ErrInvalid)
	}
	return nil
}

// Session is a session of a person who logged in.
type Session struct {
	// Digest is that of the cookie, Name and Role are the person's. All are required.
	Digest, Name, Role   string
	CreatedAt, ExpiresAt time.Time
}

// Validate reports what is missing in the session.
func (s *Session) Validate() error {
	if s.Digest == "" || s.Name == "" || len(s.Name) > maxPerson || s.Role == "" || s.CreatedAt.IsZero() ||
		!s.ExpiresAt.After(s.CreatedAt) {
		return fmt.Errorf("%w: a session needs a digest, a name, a role and times", ErrInvalid)
	}
	return nil
}

// ServiceStore is a [Store] in which services report their current state, and learn whether an operator has paused
// their intake.
type ServiceStore interface {
	Store
	// Beat stores the report of a process, replacing its last one, and returns the pause of its service.
	Beat(ctx context.Context, report *ServiceReport) (IntakePause, error)
	// Services returns, by name, the services with a report since then or that are paused.
	Services(ctx context.Context, since time.Time) ([]Service, error)
	// PauseIntake stores whether the processes of a service are to pause, with its audit record.
	PauseIntake(ctx context.Context, pause IntakePause, audit AuditRecord) error
}

// Actions on a whole service, for the audit log.
const (
	// ActionPauseIntake stops the processes of a service from receiving, ActionResumeIntake resumes it.
	ActionPauseIntake  Action = "pause_intake"
	ActionResumeIntake Action = "resume_intake"
)

// Service is a service and the last reports of its processes.
type Service struct {
	Name      string
	Pause     IntakePause
	Processes []ServiceReport
}

// IntakePause is whether a service's intake is paused, and who decided that.
type IntakePause struct {
	Service string
	Paused  bool
	By      string
	At      time.Time
}

// ServiceReport is the current state of one process of a service, at the moment At.
type ServiceReport struct {
	Service string    `json:"service"`
	Process string    `json:"process"`
	At      time.Time `json:"at"`
	// CanPause means that the process has a gate; Paused means that the gate is closed.
	CanPause bool `json:"can_pause,omitzero"`
	Paused   bool `json:"paused,omitzero"`
	// Problem is why intake has not resumed after a pause.
	Problem  string         `json:"problem,omitzero"`
	Queues   []ServiceQueue `json:"queues,omitzero"`
	Circuits []Circuit      `json:"circuits,omitzero"`
}

// ServiceQueue is the state of one topic and consumer in a process.
type ServiceQueue struct {
	Topic    string `json:"topic"`
	Consumer string `json:"consumer,omitzero"`
	Handler  string `json:"handler,omitzero"`
	// Handling is how many messages its handlers have, Since when the oldest of them began.
	Handling int       `json:"handling,omitzero"`
	Since    time.Time `json:"since,omitzero"`
	// Waiting are the retries that this process has scheduled and that are not due yet, Next when the first one is.
	Waiting int64     `json:"waiting,omitzero"`
	Next    time.Time `json:"next,omitzero"`
	// Due groups the waiting ones by the time left.
	Due []DueCount `json:"due,omitzero"`
}

// DueCount is how many retries are due within a time, but not within the previous one.
type DueCount struct {
	Within   time.Duration `json:"within"` // 0 is everything later
	Messages int64         `json:"messages"`
}

// Circuit is a circuit breaker that is not closed.
type Circuit struct {
	Key   string    `json:"key"`
	State string    `json:"state"`
	Since time.Time `json:"since,omitzero"`
}
