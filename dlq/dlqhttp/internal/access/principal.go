package access

import (
	"context"
	"fmt"
	"net/http"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// Principal is the caller.
type Principal struct {
	// Name appears in the audit log. Role is what they may do.
	Name string
	Role Role
	// Unproven means that no credentials were required: the name is the client's claim.
	Unproven bool
}

// Identity is the key of a caller's own things. The role is part of it: a thing made in one role is not available in
// another.
func (p *Principal) Identity() string {
	return fmt.Sprintf("%t %s %s", p.Unproven, p.Role, p.Name)
}

type principalKey struct{}

// WithPrincipal puts the caller into a context.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the caller; a principal with role None if the context has none.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// Require answers 403 to callers below the least role.
func Require(least Role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := From(r.Context()); !p.Role.Allows(least) {
			problem.Write(w, r, http.StatusForbidden, Refusal(p, least))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refusal explains why a caller may not do something.
func Refusal(p Principal, least Role) string {
	return fmt.Sprintf("%s is %s; this needs the role %s", p.Name, p.Role, least)
}
