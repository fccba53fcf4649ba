package dashboard

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/redrive"
)

var href = regexp.MustCompile(`href="([^"#]+)"`)

// Every link of every page works, with a valid query: a filtered list stays filtered on its next page.
func TestPages_Links(t *testing.T) {
	s := newSite(t)
	for n := range 120 {
		s.put(t, n)
	}
	run, err := s.runner.StartRun(t.Context(), redrive.Spec{Paused: true, Limit: 2}, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	seen := map[string]bool{}
	groups := 0
	for _, page := range append(append(screens(run.ID), forms...),
		"/groups/"+dlq.Fingerprint("charge", "*bank.Error", "", "bank: timeout after 1 ms")) {
		for _, m := range href.FindAllStringSubmatch(s.get(access.Admin, page).Body.String(), -1) {
			link := html.UnescapeString(m[1])
			if seen[link] {
				continue
			}
			seen[link] = true
			require.True(t, strings.HasPrefix(link, prefix+"/"), "%s on %s", link, page)
			require.NotContains(t, link, "%3D", "%s on %s", link, page)
			require.Equal(t, http.StatusOK, s.get(access.Admin, strings.TrimPrefix(link, prefix)).Code, "%s on %s", link, page)
			if strings.Contains(link, "do=") {
				groups++
			}
		}
	}
	require.Greater(t, len(seen), 40)
	require.Equal(t, 4, groups)
}
