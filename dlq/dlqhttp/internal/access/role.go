// Package access decides who the caller is and what it may do: roles, principals, authenticators, and what is in
// front of every request.
package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what somebody may do. Each may do what those before it may.
type Role int

const (
	// None may do nothing. The zero Role.
	None Role = iota
	// Viewer looks.
	Viewer
	// Operator redrives, edits, resolves, discards, restores, parks and exports.
	Operator
	// Approver lets runs of others begin.
	Approver
	// Admin imports, purges, brings back from the archive, and sees the settings.
	Admin
)

var names = []string{"none", "viewer", "operator", "approver", "admin"}

// ParseRole reads a role. None is not one to be given.
func ParseRole(text string) (Role, error) {
	if i := slices.Index(names, text); i > 0 {
		return Role(i), nil
	}
	return None, fmt.Errorf("unknown role %q: %s", text, strings.Join(names[1:], ", "))
}

// String is the role as configurations name it.
func (r Role) String() string {
	if r < None || int(r) >= len(names) {
		return fmt.Sprintf("Role(%d)", int(r))
	}
	return names[r]
}

// Allows reports whether the role may do what asks for the least role. No one may do what requires none: its role was
// forgotten.
func (r Role) Allows(least Role) bool { return least > None && r >= least }

// MarshalText is String.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseRole.
func (r *Role) UnmarshalText(text []byte) error {
	parsed, err := ParseRole(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}
