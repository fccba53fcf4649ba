package driver

import (
	"context"
	"fmt"
	"time"
)

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
	Name, Role, Digest string
	// CreatedAt and CreatedBy are required. A zero ExpiresAt means never; zero UsedAt and RevokedAt mean not yet.
	CreatedAt time.Time
	CreatedBy string
	ExpiresAt time.Time
	UsedAt    time.Time
	RevokedAt time.Time
	RevokedBy string
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
