package dlqhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
)

func (s *server) recorded(t *testing.T, action driver.Action) []driver.AuditRecord {
	t.Helper()
	records, _, err := s.manager.AuditLog(t.Context(), dlq.AuditFilter{Action: action}, dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	return records
}

// A caller's request for hidden values is recorded in the audit log, with the field and the object, but without the
// guess: on the API and on the pages.
func TestGuesses_AreAudited(t *testing.T) {
	rules, err := redact.New(redact.Config{
		Paths: []string{"$..cpf"}, Headers: []string{"authorization"}, Texts: []string{`\d{3}\.\d{3}\.\d{3}-\d{2}`},
	})
	require.NoError(t, err)
	s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin })
	s.seed(t, 3)
	const header, edit = `header "authorization"`, "/api/v1/entries/2/edit/preview"
	const guess = "111.222.333-44"
	for name, test := range map[string]struct {
		method, path, body string
		entry              int64
		field              string
	}{
		"search": {http.MethodGet, "/api/v1/entries?payload=" + guess, "", 0, "payload"},
		"count":  {http.MethodGet, "/api/v1/entries/count?error=" + guess, "", 0, "error"},
		"value":  {http.MethodGet, "/api/v1/entries?event_id=" + guess, "", 0, "value"},
		"groups": {http.MethodGet, "/api/v1/groups?cause=" + guess, "", 0, "error"},
		"audit":  {http.MethodGet, "/api/v1/audit?actor=" + guess, "", 0, "value"},
		"export": {http.MethodGet, "/api/v1/entries/export?payload=" + guess, "", 0, "payload"},
		"run":    {http.MethodPost, "/api/v1/runs/preview", `{"filter":{"payload":"` + guess + `"}}`, 0, "payload"},
		"jq": {
			http.MethodPost, "/api/v1/runs/preview", `{"filter":{"topic":"orders"},"jq":".x=\"` + guess + `\""}`,
			0, "jq",
		},
		"preview": {http.MethodPost, edit, `{"payload":"` + guess + `"}`, 2, "payload"},
		"header":  {http.MethodPost, edit, `{"set_headers":{"authorization":"` + guess + `"}}`, 2, header},
		"page":    {http.MethodGet, "/entries?payload=" + guess, "", 0, "payload"},
		"page preview": {
			http.MethodPost, "/entries/2/edit", "do=preview&new_header=authorization&new_value=" + guess, 2,
			header,
		},
		"page of runs": {http.MethodGet, "/runs/new?jq=.x&topic=orders", "", 0, "jq"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(s.recorded(t, driver.ActionRefused))
			send := append(as("operator"), "Content-Type", "application/json")
			if strings.HasPrefix(name, "page") {
				send[len(send)-1] = "application/x-www-form-urlencoded"
			}
			a := s.ask(t, test.method, test.path, test.body, send...)
			require.Equal(t, http.StatusForbidden, a.status, a.body)
			records := s.recorded(t, driver.ActionRefused)
			require.Len(t, records, before+1)
			r := records[0]
			require.Equal(t, []any{"operator", test.entry, test.field}, []any{r.Actor, r.EntryID, r.Detail["field"]})
			require.NotContains(t, fmt.Sprint(r), guess)
		})
	}
	log := s.ask(t, http.MethodGet, "/audit?action=refused", "", as("viewer")...)
	require.Contains(t, log.body, "operator")
	// Thousands of guesses do not flood the log, and their number is not lost.
	for range 150 {
		s.ask(t, http.MethodGet, "/api/v1/entries?payload=x", "", as("viewer")...)
	}
	var of int
	for _, r := range s.recorded(t, driver.ActionRefused) {
		if r.Actor == "viewer" {
			of++
		}
	}
	require.GreaterOrEqual(t, of, 100)
	require.Less(t, of, 150)
}

// If reading is recorded, no answer shows a message without a record of the reader: on every route with a field of the
// payload in its answer.
func TestReads_AreAudited(t *testing.T) {
	s := newServerWith(t, &dlq.Approval{}, func(c *dlqhttp.Config) { c.Auth, c.AuditReads = bearer(t), true })
	s.seed(t, 2)
	_, _, err := s.manager.Edit(t.Context(), 2, dlq.Edit{Payload: []byte(`{"cpf":"1"}`)}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	spec := redrive.Spec{ID: "run-1", Filter: dlq.Filter{IDs: []int64{2}}}
	_, err = s.runner.StartRun(t.Context(), spec, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	shown := 0
	for _, r := range s.handler.Routes() {
		if r.Method != http.MethodGet && r.Method != http.MethodPost || strings.HasSuffix(r.Path, "/events") {
			continue
		}
		id, run := "2", "run-1"
		if strings.Contains(r.Path, "/runs/") {
			id = run
		}
		path := strings.NewReplacer("{id}", id, "{revision}", "0", "{fingerprint}", "x", "{$}", "").Replace(r.Path)
		before := len(s.recorded(t, driver.ActionRead))
		body, kind := `{"filter":{"ids":[2]},"set_headers":{"x":"y"}}`, "application/json"
		if !strings.HasPrefix(r.Path, "/api/") {
			body, kind = "do=preview&topic=orders", "application/x-www-form-urlencoded"
		}
		if r.Method == http.MethodGet {
			path += "?id=2"
			if strings.HasPrefix(r.Path, "/api/") {
				path = strings.TrimSuffix(path, "?id=2")
			}
		}
		a := s.ask(t, r.Method, path, body, append(as("operator"), "Content-Type", kind)...)
		// the name of a field that is in payloads only
		if !strings.Contains(a.body, "cpf") && !strings.Contains(a.body, "Y3Bm") {
			continue
		}
		shown++
		require.Greater(t, len(s.recorded(t, driver.ActionRead)), before, "%s %s shows a message: %.300s", r.Method, path,
			a.body)
		require.NotContains(t, a.body, "data-every", "%s: each refresh would be a read", path)
	}
	require.GreaterOrEqual(t, shown, 8)
	reads := s.recorded(t, driver.ActionRead)
	require.Equal(t, "operator", reads[0].Actor)
	require.NotZero(t, reads[0].EntryID)
}

// A message whose reading cannot be recorded is not shown.
func TestReads_FailClosed(t *testing.T) {
	s := newServer(t)
	s.seed(t, 2)
	m, err := dlq.NewManager(dlq.ManagerConfig{Store: silent{s.letters.Store()}})
	require.NoError(t, err)
	s.cfg.Manager, s.cfg.AuditReads = m, true
	s = s.restarted(t)
	for _, path := range []string{
		"/api/v1/entries/1", "/api/v1/entries/1/payload", "/api/v1/entries/1/diff", "/entries/1", "/entries/1/payload",
		"/entries/1/edit",
	} {
		a := s.ask(t, http.MethodGet, path, "")
		require.GreaterOrEqual(t, a.status, http.StatusUnprocessableEntity, path)
		require.NotContains(t, a.body, "cpf", path)
	}
	require.Equal(t, http.StatusOK, s.ask(t, http.MethodGet, "/api/v1/entries", "").status)
}

// silent is a store whose audit log accepts no records.
type silent struct{ dlq.Store }

// Record implements driver.RecordStore.
func (silent) Record(context.Context, ...driver.AuditRecord) error { return errBroker }
