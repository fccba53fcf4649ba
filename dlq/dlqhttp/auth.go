package dlqhttp

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Ways to authenticate.
type (
	// Token is a bearer token, given by its digest; see [Bearer].
	Token = access.Token
	// User is a user with a password; see [Basic].
	User = access.User
	// ProxyConfig specifies the headers of an authenticating reverse proxy; see [Proxy].
	ProxyConfig = access.ProxyConfig
)

// Bearer authenticates by "Authorization: Bearer <token>". Tokens are compared in constant time. Browsers may send the
// token as the password of basic authentication, with any user name. The error names every invalid token.
func Bearer(tokens ...Token) (Authenticator, error) { return access.Bearer(tokens...) }

// Basic authenticates by user name and password. All hashes should have the same cost: the time of a refusal reveals
// the users whose hash has a lower one. The error names every invalid user.
func Basic(users ...User) (Authenticator, error) { return access.Basic(users...) }

// Proxy authenticates by the headers of a reverse proxy, which are only trusted on connections from its addresses.
func Proxy(cfg ProxyConfig) (Authenticator, error) { return access.Proxy(cfg) }

// Stored authenticates by the tokens in a store, which redrive token creates and revokes. A revoked token is refused
// within five seconds. Put it before [Bearer], which refuses tokens that it does not know.
func Stored(store driver.Store, logger *slog.Logger) (Authenticator, error) {
	return access.Stored(store, logger)
}

// HashToken returns the digest of a token for [Token].
func HashToken(token string) string { return access.HashToken(token) }

// ParseRole reads metrics, viewer, operator, approver or admin.
func ParseRole(text string) (Role, error) { return access.ParseRole(text) }

// CheckAddress rejects an address that other machines could reach without authentication.
func CheckAddress(address string, auth []Authenticator) error {
	local, err := access.IsLoopback(address)
	if err != nil {
		return fmt.Errorf("dlqhttp: address %q: not host:port, such as 127.0.0.1:8321", address)
	}
	if !local && len(auth) == 0 {
		return fmt.Errorf("dlqhttp: address %s: %w: anyone who can reach it could read and change the dead letters: "+
			"configure server.auth (tokens, users or proxy), or listen on 127.0.0.1", address,
			ErrNoAuthentication)
	}
	return nil
}

// ErrNoAuthentication means that a server would be open to everyone.
var ErrNoAuthentication = errors.New("not a loopback address, and no authentication")

// IsLoopback reports whether only this machine can reach an address, host:port, to listen on.
func IsLoopback(address string) (bool, error) { return access.IsLoopback(address) }
