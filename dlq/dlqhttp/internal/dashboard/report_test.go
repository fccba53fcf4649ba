package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/envelope"
)

// The page of the report lists each cause under its trend, links to it, and equals the downloads.
func TestPages_Report(t *testing.T) {
	s := newSite(t)
	empty := s.get(access.Viewer, "/report?since=24h").Body.String()
	require.Contains(t, empty, "Nothing to compare")
	require.Contains(t, empty, "neither in the last 24 h nor in the 24 h before")

	n := 0
	die := func(cause string, times int, ago time.Duration) {
		for range times {
			n++
			s.put(t, n, func(d *envelope.DeadLetter) { d.Err.Message, d.At = cause, time.Now().Add(-ago) })
		}
	}
	const day = 24 * time.Hour
	die("brand new <b>", 2, 2*day)
	die("grows fast", 1, 9*day)
	die("grows fast", 8, day)
	die("is back", 1, 20*day)
	die("is back", 1, 3*day)
	die("is fixed", 3, 10*day)
	die("is steady", 5, 9*day)
	die("is steady", 5, day)
	require.Contains(t, s.get(access.Viewer, "/report?since=2d").Body.String(), "No cause is growing.")

	page := s.get(access.Viewer, "/report").Body.String()
	require.Contains(t, page, `href="/ops/report" data-go="w" aria-current="page"`)
	require.Contains(t, page, `href="/ops/report?since=7d" aria-current="true"`)
	parts := strings.Split(page, `<section class="panel">`)[1:]
	require.Len(t, parts, 5)
	for i, want := range []struct{ title, cause, shown string }{
		{"New", "brand new <b>", "brand new &lt;b&gt;"},
		{"Growing", "grows fast", "grows fast"},
		{"Returning", "is back", "is back"},
		{"Fixed", "is fixed", "is fixed"},
		{"Steady", "is steady", "is steady"},
	} {
		require.Contains(t, parts[i], "<h2>"+want.title+"</h2>")
		require.Contains(t, parts[i], ">"+want.shown+"</bdi></a>")
		require.Contains(t, parts[i], `href="/ops/groups/`+dlq.Fingerprint("charge", "*bank.Error", "", want.cause)+`"`)
		require.Equal(t, 1, strings.Count(parts[i], "<tr data-href"), want.title)
	}

	w := s.get(access.Viewer, "/report.json?since=7d")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Regexp(t, `^attachment; filename="dead-letters-\d{4}-\d\d-\d\d-to-\d{4}-\d\d-\d\d\.json"$`,
		w.Header().Get("Content-Disposition"))
	var report dlq.Recurrence
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &report))
	require.Equal(t, []int64{16, 9}, []int64{report.Now, report.Before})
	require.Equal(t, "is fixed", report.Fixed[0].Cause)

	w = s.get(access.Viewer, "/report.md?since=7d")
	require.Equal(t, http.StatusOK, w.Code)
	require.Equal(t, "text/markdown; charset=utf-8", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Security-Policy"), "sandbox")
	require.Equal(t, report.Markdown(), w.Body.String())
}

// Text that a viewer may not see is hidden in the page and the files, and still there for the next viewer: they share
// one read.
func TestPages_ReportRedaction(t *testing.T) {
	rules, err := redact.New(redact.Config{Texts: []string{`bank of \w+`}})
	require.NoError(t, err)
	s := newSite(t, func(c *operations.Config) {
		c.Visible = func(ctx context.Context) visible.View {
			if access.From(ctx).Role.Allows(access.Admin) {
				return visible.View{}
			}
			return visible.New(rules, "admin", nil)
		}
	})
	s.put(t, 1, func(d *envelope.DeadLetter) { d.Err.Message = "bank of Lisbon refuses" })
	for _, path := range []string{"/report", "/report.md", "/report.json"} {
		for range 2 {
			hidden := s.get(access.Operator, path).Body.String()
			require.Contains(t, hidden, "refuses", path)
			require.NotContains(t, hidden, "Lisbon", path)
			require.Contains(t, s.get(access.Admin, path).Body.String(), "bank of Lisbon refuses", path)
		}
	}
}
