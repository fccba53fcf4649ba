package access_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// A known user without a role, or with too low a one, is refused.
func TestRequire(t *testing.T) {
	reached := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for role, want := range map[access.Role]int{
		access.None: http.StatusForbidden, access.Viewer: http.StatusForbidden,
		access.Operator: http.StatusNoContent, access.Admin: http.StatusNoContent,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r = r.WithContext(access.WithPrincipal(r.Context(), access.Principal{Name: "ana", Role: role}))
		w := httptest.NewRecorder()
		access.Require(access.Operator, reached).ServeHTTP(w, r)
		require.Equal(t, want, w.Code, "role %v", role)
	}
}
