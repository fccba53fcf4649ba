package access

import (
	"errors"
	"net/http"
)

// Authenticator identifies the sender of a request. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns who it is. The error is [ErrNoCredentials] when the request has no credentials that this
	// authenticator reads: then the next one is tried. [ErrBadCredentials] refuses the request. Any other error means that
	// the credentials could not be checked: unless another authenticator accepts them, the answer is 503. The request's
	// context ends after two seconds.
	Authenticate(r *http.Request) (Principal, error)
}

// AuthenticatorFunc turns a function into an Authenticator.
type AuthenticatorFunc func(*http.Request) (Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (Principal, error) { return f(r) }

var (
	// ErrNoCredentials means that a request has no credentials that this authenticator reads.
	ErrNoCredentials = errors.New("no credentials")
	// ErrBadCredentials means that the credentials are wrong.
	ErrBadCredentials = errors.New("unknown token, user or password")
)
