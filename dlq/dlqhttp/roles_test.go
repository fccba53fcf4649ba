package dlqhttp_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// operation is a route as the document describes it.
type operation struct {
	method, path, id, role string
	changes                bool
	parameters             []parameter
	body                   bool
	content                string
}

type parameter struct {
	name, in, kind, format, pattern string
	enum                            []any
}

// operations walks over the document that the server serves.
func operations(t *testing.T, s *server, header ...string) []operation {
	t.Helper()
	a := s.ask(t, http.MethodGet, "/api/v1/openapi.json", "", header...)
	require.Equal(t, http.StatusOK, a.status, a.body)
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Role        string `json:"x-role"`
			Changes     bool   `json:"x-changes"`
			Parameters  []struct {
				Name, In string
				Schema   struct {
					Type            any
					Format, Pattern string
					Enum            []any
				}
			}
			RequestBody *struct {
				Content map[string]json.RawMessage
			} `json:"requestBody"`
		}
	}
	a.json(t, &document)
	var list []operation
	for _, path := range slices.Sorted(maps.Keys(document.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(document.Paths[path])) {
			o := document.Paths[path][method]
			op := operation{
				method: strings.ToUpper(method), path: "/api/v1" + path, id: o.OperationID, role: o.Role, changes: o.Changes,
				body: o.RequestBody != nil,
			}
			if op.body {
				op.content = slices.Collect(maps.Keys(o.RequestBody.Content))[0]
			}
			for _, p := range o.Parameters {
				kind, _ := p.Schema.Type.(string)
				op.parameters = append(op.parameters,
					parameter{p.Name, p.In, kind, p.Schema.Format, p.Schema.Pattern, p.Schema.Enum})
			}
			list = append(list, op)
		}
	}
	return list
}

// at is the path with ids that do not exist.
func (o *operation) at() string {
	return strings.NewReplacer("{id}", "999", "{revision}", "7").Replace(o.path)
}

// Every route of the document is tested with every role, and without one. A route that does not declare its role, or
// that it changes something, fails the test.
func TestRoles_EveryRoleOnEveryRoute(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	roles := []string{"metrics", "viewer", "operator", "approver", "admin"}
	all := operations(t, s, as("viewer")...)
	require.Greater(t, len(all), 40)
	for _, op := range all {
		least := slices.Index(roles, op.role)
		require.GreaterOrEqual(t, least, 0, "%s %s declares no role", op.method, op.path)
		require.NotEqual(t, "metrics", op.role, "%s %s", op.method, op.path)
		preview := strings.HasSuffix(op.path, "/preview")
		require.Equal(t, op.method != http.MethodGet && !preview, op.changes, "%s %s: x-changes", op.method, op.path)
		if op.changes {
			require.NotEqual(t, "viewer", op.role, "%s %s: a viewer changes nothing", op.method, op.path)
		}
		content := []string{"Content-Type", op.content}
		for have, role := range roles {
			a := s.ask(t, op.method, op.at(), "", append(as(role), content...)...)
			if have >= least {
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed}, a.status,
					"%s on %s %s: %s", role, op.method, op.path, a.body)
				continue
			}
			require.Equal(t, http.StatusForbidden, a.status, "%s on %s %s: %s", role, op.method, op.path, a.body)
			needs := op.role
			if role == "metrics" {
				needs = "viewer" // refused before the route is known
			}
			require.Contains(t, a.body, "this needs the role "+needs)
		}
		for name, header := range map[string][]string{
			"anonymous": nil, "a wrong token": {"Authorization", "Bearer nonsense"},
			"another scheme": {"Authorization", "Digest x"},
		} {
			a := s.ask(t, op.method, op.at(), "", append(header, content...)...)
			if a.status == http.StatusTooManyRequests {
				require.NotEqual(t, "anonymous", name)
				continue // too many wrong ones before
			}
			require.Equal(t, http.StatusUnauthorized, a.status, "%s on %s %s", name, op.method, op.path)
			require.NotEmpty(t, a.header.Values("WWW-Authenticate"))
		}
	}
}

// A viewer may preview a run, but not with a jq expression, which the server would evaluate.
func TestRoles_PreviewWithJQ(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 2)
	for _, c := range []struct {
		role, jq string
		status   int
	}{{"viewer", "", http.StatusOK}, {"viewer", ".x = 1", http.StatusForbidden}, {"operator", ".x = 1", http.StatusOK}} {
		a := s.ask(t, http.MethodPost, "/api/v1/runs/preview", `{"filter":{"topic":"orders"},"jq":"`+c.jq+`"}`,
			append(as(c.role), "Content-Type", "application/json")...)
		require.Equal(t, c.status, a.status, a.body)
		if c.status == http.StatusForbidden {
			require.Contains(t, a.body, "this needs the role operator")
		}
	}
}

// Nor is the jq expression of a run that waits for approval evaluated for a viewer, by the API or by the run's page,
// which refreshes no faster than others as long as it shows what would be sent: a review may be recorded as a read.
func TestRoles_ReviewWithJQ(t *testing.T) {
	s := newServerWith(t, &dlq.Approval{Above: 1}, func(c *dlqhttp.Config) { c.Auth = bearer(t) })
	s.seed(t, 2)
	for id, jq := range map[string]string{"plain": "", "edited": `.total = "edited"`} {
		_, err := s.runner.StartRun(t.Context(), redrive.Spec{ID: id, JQ: jq}, dlq.By{Actor: "ana"})
		require.NoError(t, err)
	}
	for _, c := range []struct {
		role, run string
		status    int
	}{
		{"viewer", "plain", http.StatusOK},
		{"viewer", "edited", http.StatusForbidden},
		{"operator", "edited", http.StatusOK},
		{"viewer", "none", http.StatusNotFound},
	} {
		a := s.ask(t, http.MethodGet, "/api/v1/runs/"+c.run+"/review", "", as(c.role)...)
		require.Equal(t, c.status, a.status, "%+v: %s", c, a.body)
		page := s.ask(t, http.MethodGet, "/runs/"+c.run, "", as(c.role)...)
		if c.status == http.StatusNotFound {
			require.Equal(t, c.status, page.status, page.body)
			continue
		}
		require.Equal(t, http.StatusOK, page.status, page.body)
		require.Equal(t, c.status == http.StatusOK, strings.Contains(page.body, `id="review"`), "%+v", c)
		require.Equal(t, c.status == http.StatusForbidden, strings.Contains(page.body, "is shown to operators"), "%+v", c)
		require.Contains(t, page.body, `data-every="5"`)
	}
}

// A read-only server refuses changes, by admins too, and shows the rest.
func TestReadOnly(t *testing.T) {
	s := newServer(t, func(c *dlqhttp.Config) { c.ReadOnly = true })
	s.seed(t, 2)
	before := s.dump(t)
	for _, op := range operations(t, s) {
		a := s.ask(t, op.method, strings.NewReplacer("{id}", "1", "{revision}", "0").Replace(op.path), "{}", "Content-Type",
			op.content)
		if op.changes {
			require.Equal(t, http.StatusForbidden, a.status, "%s %s: %s", op.method, op.path, a.body)
			require.Contains(t, a.body, "read-only")
			continue
		}
		require.NotEqual(t, http.StatusForbidden, a.status, "%s %s: %s", op.method, op.path, a.body)
	}
	require.Equal(t, before, s.dump(t))
}
