package access

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"runtime"

	"golang.org/x/crypto/bcrypt"
)

// User is a user with a password.
type User struct {
	// Name appears in the audit log. Role is what they may do. Both are required.
	Name string
	Role Role
	// Bcrypt is the bcrypt hash of the password ($2a$..., cost 10 or more). Required.
	Bcrypt string
}

type basic struct {
	users map[string]User
	none  string // the hash to compare an unknown user's password with: the slowest
	// slots bound the comparisons at the same time, which take all of a processor each.
	slots chan struct{}
	// known are the correct passwords by their digest: bcrypt is slow on purpose, and would run for each request.
	known known[[sha256.Size]byte, bool]
}

// Basic authenticates by user name and password.
func Basic(users ...User) (Authenticator, error) {
	b := &basic{users: map[string]User{}, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	var errs []error
	slowest := 0
	for i, u := range users {
		cost, err := bcrypt.Cost([]byte(u.Bcrypt))
		switch {
		case u.Name == "":
			errs = append(errs, fmt.Errorf("user %d: a name is required", i+1))
		case b.users[u.Name].Name != "":
			errs = append(errs, fmt.Errorf("duplicate user %s", u.Name))
		case u.Role <= None:
			errs = append(errs, fmt.Errorf("user %s: a role is required", u.Name))
		case err != nil:
			errs = append(errs, fmt.Errorf("user %s: hash: not a bcrypt hash; redrive config hash-password makes one", u.Name))
		case cost < bcrypt.DefaultCost:
			errs = append(errs, fmt.Errorf("user %s: hash: cost %d is too low: at least %d", u.Name, cost, bcrypt.DefaultCost))
		}
		if b.users[u.Name] = u; cost > slowest {
			slowest, b.none = cost, u.Bcrypt
		}
	}
	return b, errors.Join(errs...)
}

// Authenticate takes the same time for unknown users as for those whose hash costs the most.
func (b *basic) Authenticate(r *http.Request) (Principal, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	user, there := b.users[name]
	who := Principal{Name: user.Name, Role: user.Role}
	if b.Known(r) {
		return who, nil
	}
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-r.Context().Done():
		return Principal{}, r.Context().Err()
	}
	hash := cmp.Or(user.Bcrypt, b.none)
	if !b.Known(r) && (bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || !there) {
		return Principal{}, ErrBadCredentials
	}
	b.known.put(seenKey(&user, password), true)
	return who, nil
}

// Known reports whether these credentials were correct before. It costs nothing.
func (b *basic) Known(r *http.Request) bool {
	name, password, _ := r.BasicAuth()
	user, there := b.users[name]
	right, _ := b.known.get(seenKey(&user, password))
	return there && right
}

func seenKey(u *User, password string) [sha256.Size]byte {
	return sha256.Sum256([]byte(u.Name + "\x00" + u.Bcrypt + "\x00" + password))
}
