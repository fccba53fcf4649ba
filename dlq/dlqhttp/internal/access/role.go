// Package access decides who the caller is and what it may do: roles, principals, authenticators, and the guard in
// front of every request.
package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what a caller may do. Each role includes those before it.
type Role int

const (
	// None may do nothing. The zero Role.
	None Role = iota
	// Metrics may read /metrics, and nothing else.
	Metrics
	// Viewer may look.
	Viewer
	// Operator may redrive, edit, resolve, discard, restore, park and export.
	Operator
	// Approver may approve other people's runs.
	Approver
	// Admin may import, purge, restore from the archive, and see the settings.
	Admin
)

var names = []string{"none", "metrics", "viewer", "operator", "approver", "admin"}

// ParseRole reads a role. None cannot be assigned.
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

// Allows reports whether the role may do what requires the least role. Nothing is allowed for a least role of None: it
// was forgotten.
func (r Role) Allows(least Role) bool { return least > None && r >= least }
