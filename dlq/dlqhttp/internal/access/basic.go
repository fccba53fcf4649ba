package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"

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
	none  []byte // the hash to compare an unknown user's password with
	// known are the correct passwords by their digest: bcrypt is slow on purpose, and would run for each request.
	known known[[sha256.Size]byte, bool]
}

// Basic authenticates by user name and password.
func Basic(users ...User) (Authenticator, error) {
	b := &basic{users: map[string]User{}}
	var errs []error
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
		b.users[u.Name] = u
	}
	none, err := bcrypt.GenerateFromPassword([]byte("no such user"), bcrypt.DefaultCost)
	b.none = none
	return b, errors.Join(append(errs, err)...)
}

// Authenticate takes the same time for unknown and for known users.
func (b *basic) Authenticate(r *http.Request) (Principal, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	user, there := b.users[name]
	if b.Known(r) {
		return Principal{Name: user.Name, Role: user.Role}, nil
	}
	hash := []byte(user.Bcrypt)
	if !there {
		hash = b.none
	}
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !there {
		return Principal{}, ErrBadCredentials
	}
	b.known.put(seenKey(&user, password), true)
	return Principal{Name: user.Name, Role: user.Role}, nil
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
