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
	// Token is a bearer token that is known by its digest; see [Bearer].
	Token = access.Token
	// User is somebody with a password; see [Basic].
	User = access.User
	// ProxyConfig specifies what a reverse proxy that authenticates tells us; see [Proxy].
	ProxyConfig = access.ProxyConfig
)

// Bearer authenticates by "Authorization: Bearer <token>". Tokens are compared in constant time. Browsers may send the
// token as the password of basic authentication, with any user name. The error names every token that makes no sense.
func Bearer(tokens ...Token) (Authenticator, error) { return access.Bearer(tokens...) }

// Basic authenticates by user name and password. The error names every user that makes no sense.
func Basic(users ...User) (Authenticator, error) { return access.Basic(users...) }

// Proxy authenticates by the headers of a reverse proxy, which are believed only on connections from its addresses.
func Proxy(cfg ProxyConfig) (Authenticator, error) { return access.Proxy(cfg) }

// Stored authenticates by the tokens that a store keeps, which redrive token creates and revokes. A token that was
// revoked is refused after five seconds. Give it before [Bearer], which refuses tokens that it does not know.
func Stored(store driver.Store, logger *slog.Logger) (Authenticator, error) {
	return access.Stored(store, logger)
}

// HashToken is the digest of a token, as [Token] takes it.
func HashToken(token string) string { return access.HashToken(token) }

// ParseRole reads viewer, operator, approver or admin.
func ParseRole(text string) (Role, error) { return access.ParseRole(text) }

// CheckAddress refuses to listen where others than this machine could come without saying who they are.
func CheckAddress(address string, auth []Authenticator) error {
	local, err := access.IsLoopback(address)
	if err != nil {
		return fmt.Errorf("dlqhttp: address %q: %w: host:port, such as 127.0.0.1:8321", address, err)
	}
	if !local && len(auth) == 0 {
		return fmt.Errorf("dlqhttp: address %s: %w: anybody who reaches it could read and change the dead letters: "+
			"configure authentication (server.auth: tokens, users or proxy), or listen on 127.0.0.1", address,
			ErrNoAuthentication)
	}
	return nil
}

// ErrNoAuthentication means that a server would be open to everybody.
var ErrNoAuthentication = errors.New("not a loopback address, and no authentication")

// IsLoopback reports whether only this machine reaches an address, host:port, to listen on.
func IsLoopback(address string) (bool, error) { return access.IsLoopback(address) }
