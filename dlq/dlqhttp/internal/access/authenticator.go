package access

import (
	"errors"
	"net/http"
)

// Authenticator identifies the sender of a request. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns who it is. The error is [ErrNoCredentials] when the request has nothing that this
	// authenticator reads: then the next one is asked. Any other error refuses the request.
	Authenticate(r *http.Request) (Principal, error)
}

// AuthenticatorFunc makes an Authenticator of a function.
type AuthenticatorFunc func(*http.Request) (Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (Principal, error) { return f(r) }

var (
	// ErrNoCredentials means that a request says nothing of who sends it, in a way that this authenticator reads.
	ErrNoCredentials = errors.New("no credentials")
	// ErrBadCredentials means that what it says is wrong.
	ErrBadCredentials = errors.New("unknown token, user or password")
)
