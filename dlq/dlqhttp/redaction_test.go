package dlqhttp_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Hidden text is hidden on every route that shows anything, from every role but the one that may see it, and in the
// log.
func TestRedaction_HoldsEverywhere(t *testing.T) {
	rules, err := redact.New(redact.Config{
		Paths: []string{"$..cpf"}, Headers: []string{"authorization"}, Texts: []string{`\d{3}\.\d{3}\.\d{3}-\d{2}`},
	})
	require.NoError(t, err)
	s := newServer(t, func(c *dlqhttp.Config) {
		c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin
		c.Health = func(context.Context) (h dlqhttp.Health) {
			h.Add("broker", errors.New("queue of 111.222.333-44 is gone"), dlqhttp.Component{})
			return h
		}
		c.Topology = func(context.Context) (any, error) {
			return map[string]any{"queues": []string{"of 111.222.333-44"}, "cpf": 1}, nil
		}
	})
	s.seed(t, 3)
	by := dlq.By{Actor: "ana", Note: "called 111.222.333-44"}
	_, _, err = s.manager.Edit(t.Context(), 1, dlq.Edit{
		Payload:    []byte(`{"customer":{"cpf":"999.888.777-66"},"order":1}`),
		SetHeaders: map[string]string{"authorization": "secret"},
	}, by)
	require.NoError(t, err)
	_, err = s.runner.StartRun(t.Context(),
		redrive.Spec{ID: "run-1", Paused: true, JQ: `.customer.cpf = "999.888.777-66"`, Filter: dlq.Filter{
			IDs: []int64{1, 2}, ErrorText: "111.222.333-44", CauseText: "111.222.333-44", PayloadText: "999.888.777-66",
			PayloadFields: []wire.PayloadField{{Path: []string{"customer", "cpf"}, Value: "999.888.777-66"}},
		}}, by)
	require.NoError(t, err)

	shown := 0
	for _, op := range operations(t, s, as("viewer")...) {
		if op.method != http.MethodGet || op.id == "watch-run" {
			continue
		}
		path := strings.NewReplacer("{id}", "1", "{revision}", "0").Replace(op.path)
		if strings.HasPrefix(op.path, "/api/v1/runs/") {
			path = strings.ReplaceAll(op.path, "{id}", "run-1")
		}
		for _, role := range []string{"viewer", "operator", "approver"} {
			a := s.ask(t, op.method, path, "", as(role)...)
			for _, secret := range []string{"111.222.333-44", "999.888.777-66", `"secret"`, "OTk5Ljg4OC43Nzc"} {
				require.NotContains(t, a.body, secret, "%s of %s", path, role)
			}
			if strings.Contains(a.body, redact.Mask) {
				shown++
			}
		}
		a := s.ask(t, op.method, path, "", as("admin")...)
		require.NotContains(t, a.body, redact.Mask, path)
	}
	require.Greater(t, shown, 17, "something was hidden")
	for _, path := range []string{"/", "/system", "/readyz"} {
		a := s.ask(t, http.MethodGet, path, "", as("viewer")...)
		require.NotContains(t, a.body, "111.222.333-44", path)
		require.Contains(t, a.body, redact.Mask, path)
		require.Contains(t, s.ask(t, http.MethodGet, path, "", as("admin")...).body, "111.222.333-44", path)
	}
	topology := s.ask(t, http.MethodGet, "/api/v1/topology", "", as("viewer")...)
	require.JSONEq(t, `{"queues":["of [redacted]"],"cpf":1}`, topology.body, "paths are those of payloads")
	a := s.ask(t, http.MethodGet, "/api/v1/entries/1", "", as("admin")...)
	require.Contains(t, a.body, "999.888.777-66")
	preview := s.ask(t, http.MethodPost, "/api/v1/runs/preview", `{"filter":{"topic":"orders"}}`,
		append(as("operator"), "Content-Type", "application/json")...)
	require.Equal(t, http.StatusOK, preview.status)
	require.NotContains(t, preview.body, "111.222")

	findsNothingOut(t, s)

	// A redacted export is marked as such, and is not treated as the real one.
	export := s.ask(t, http.MethodGet, "/api/v1/entries/export", "", as("operator")...)
	require.Contains(t, export.body, `"redacted":true`)
	back := s.ask(t, http.MethodPost, "/api/v1/entries/import", export.body,
		append(as("admin"), "Content-Type", "application/jsonl")...)
	require.Equal(t, http.StatusUnprocessableEntity, back.status)
	require.Contains(t, back.body, "may not see everything")
	whole := s.ask(t, http.MethodGet, "/api/v1/entries/export", "", as("admin")...)
	back = s.ask(t, http.MethodPost, "/api/v1/entries/import", whole.body,
		append(as("admin"), "Content-Type", "application/jsonl")...)
	require.Equal(t, http.StatusOK, back.status, back.body)
	require.InDelta(t, 3, back.at(t, "seen"), 0)
	require.NotContains(t, s.log.String(), "111.222.333-44")
}

// findsNothingOut: a caller without the right to see hidden text cannot find it out by searching, by a jq expression
// that copies it, or by sending the mask back.
func findsNothingOut(t *testing.T, s *server) {
	t.Helper()
	for name, test := range map[string]struct {
		method, path, body string
		status             int
	}{
		"search":       {http.MethodGet, "/api/v1/entries?payload=111", "", http.StatusForbidden},
		"run's search": {http.MethodPost, "/api/v1/runs", `{"filter":{"payload":"111"}}`, http.StatusForbidden},
		"field":        {http.MethodGet, "/api/v1/entries?payload_fields=customer.cpf%3D1", "", http.StatusForbidden},
		"count field":  {http.MethodGet, "/api/v1/entries/count?payload_fields=customer.cpf%3D1", "", http.StatusForbidden},
		"export field": {http.MethodGet, "/api/v1/entries/export?payload_fields=customer.cpf%3D1", "", http.StatusForbidden},
		"run's field": {
			http.MethodPost, "/api/v1/runs", `{"filter":{"payload_fields":["customer.cpf=1"]}}`,
			http.StatusForbidden,
		},
		"bulk field": {
			http.MethodPost, "/api/v1/entries/bulk",
			`{"action":"park","filter":{"payload_fields":["customer.cpf=1"]}}`, http.StatusForbidden,
		},
		"jq": {http.MethodPost, "/api/v1/entries/1/edit", `{"jq":".copy = .customer.cpf"}`, http.StatusForbidden},
		"jq preview": {
			http.MethodPost, "/api/v1/entries/1/edit/preview", `{"jq":".copy = .customer.cpf"}`,
			http.StatusForbidden,
		},
		"run's jq": {
			http.MethodPost, "/api/v1/runs/preview",
			`{"filter":{"topic":"orders"},"jq":".copy = .customer.cpf"}`, http.StatusForbidden,
		},
		"the mask": {
			http.MethodPost, "/api/v1/entries/1/edit", `{"payload":"{\"customer\":{\"cpf\":\"[redacted]\"}}"}`,
			http.StatusUnprocessableEntity,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(t, test.method, test.path, test.body, append(as("operator"), "Content-Type", "application/json")...)
			require.Equal(t, test.status, a.status, a.body)
			require.Contains(t, a.body, "admin", "whom to ask")
		})
	}
}

// The live page has texts of services, some of which come from messages, and the names of people.
func TestRedaction_LivePage(t *testing.T) {
	rules, err := redact.New(redact.Config{Texts: []string{`[a-z]+@[a-z]+`}})
	require.NoError(t, err)
	s := newServer(t, func(c *dlqhttp.Config) {
		c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin
		c.Depths = func(context.Context) ([]dlqhttp.Depth, error) {
			return []dlqhttp.Depth{{Topic: "orders of ana@depth", Group: "ana@group", Messages: 1}}, errors.New("ana@broker")
		}
	})
	services, ok := driver.As[driver.ServiceStore](s.letters.Store())
	require.True(t, ok)
	_, err = services.Beat(t.Context(), &driver.ServiceReport{
		Service: "shop", Process: "1", At: time.Now(), CanPause: true, Problem: "ana@problem",
		Queues:   []driver.ServiceQueue{{Topic: "ana@topic", Consumer: "ana@consumer", Handler: "ana@handler", Handling: 1}},
		Circuits: []driver.Circuit{{Key: "ana@circuit", State: "open"}},
	})
	require.NoError(t, err)
	require.NoError(t, s.manager.PauseIntake(t.Context(), "shop", true, dlq.By{Actor: "ana@ops"}))
	html := []string{"Accept", "application/xhtml+xml"}
	whole := s.ask(t, http.MethodGet, "/live", "", append(as("admin"), html...)...).body
	for _, secret := range []string{"depth", "group", "broker", "problem", "topic", "consumer", "handler", "circuit", "ops"} {
		require.Contains(t, whole, "ana@"+secret)
	}
	part := s.ask(t, http.MethodGet, "/live", "", append(as("viewer"), html...)...).body
	require.Contains(t, part, redact.Mask)
	require.NotContains(t, part, "ana@")
}
