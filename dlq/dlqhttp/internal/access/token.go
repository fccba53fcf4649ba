package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Token is a bearer token, stored as its digest.
type Token struct {
	// Name of its owner appears in the audit log. Role is what they may do. Both are required.
	Name string
	Role Role
	// SHA256 is the digest of the token in hex, as HashToken makes it. Required.
	SHA256 string
}

// hashPrefix may precede a digest, to name its kind.
const hashPrefix = "sha256:"

// HashToken returns the digest of a token for configurations. A token is random and long, so a fast digest is enough; a
// password is not a token.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

type bearer struct {
	tokens []Token
	sums   [][sha256.Size]byte
}

// Bearer authenticates by "Authorization: Bearer <token>". Browsers cannot send that on their own; they may send the
// token as the password of basic authentication, with any user name.
func Bearer(tokens ...Token) (Authenticator, error) {
	b := &bearer{tokens: tokens}
	var errs []error
	for i, t := range tokens {
		sum, err := hex.DecodeString(strings.TrimPrefix(t.SHA256, hashPrefix))
		switch {
		case err != nil || len(sum) != sha256.Size:
			errs = append(errs, fmt.Errorf("token %d (%s): hash: not %s and 64 hex digits; redrive config hash-token makes one",
				i+1, t.Name, hashPrefix))
			continue
		case t.Name == "":
			errs = append(errs, fmt.Errorf("token %d: a name is required", i+1))
		case t.Role <= None:
			errs = append(errs, fmt.Errorf("token %d (%s): a role is required", i+1, t.Name))
		}
		if slices.Contains(b.sums, [sha256.Size]byte(sum)) {
			errs = append(errs, fmt.Errorf("token %d (%s): duplicate token", i+1, t.Name))
		}
		b.sums = append(b.sums, [sha256.Size]byte(sum))
	}
	return b, errors.Join(errs...)
}

// Authenticate compares with every token, so that its duration reveals nothing.
func (b *bearer) Authenticate(r *http.Request) (Principal, error) {
	token, asPassword, ok := tokenOf(r)
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	found := b.find(token)
	switch {
	case found >= 0:
		return Principal{Name: b.tokens[found].Name, Role: b.tokens[found].Role}, nil
	case asPassword:
		return Principal{}, ErrNoCredentials // it may be a user's password, for another authenticator
	default:
		return Principal{}, ErrBadCredentials
	}
}

// Known reports whether the token is one of ours. It only costs a digest, so a token that is sent as a password is
// checked even while others guess.
func (b *bearer) Known(r *http.Request) bool {
	token, _, ok := tokenOf(r)
	return ok && b.find(token) >= 0
}

func (b *bearer) find(token string) int {
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range b.sums {
		if subtle.ConstantTimeCompare(sum[:], b.sums[i][:]) == 1 {
			found = i
		}
	}
	return found
}

// tokenOf is the token of a request: a bearer token, or the password from a browser, which cannot send bearer tokens.
func tokenOf(r *http.Request) (token string, asPassword, ok bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return strings.TrimSpace(password), true, true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), false, strings.EqualFold(scheme, "Bearer")
}
