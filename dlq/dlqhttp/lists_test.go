package dlqhttp_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Every list of the API is complete or marked as incomplete: by its Link header or next if it has pages, by incomplete
// if it has none. A list cannot be left out: all those of the document with a limit are tested.
func TestLists_SayThatThereAreMore(t *testing.T) {
	s := newServer(t)
	s.seed(t, 4)
	for _, id := range []string{"first", "second"} {
		_, err := s.runner.StartRun(t.Context(), redrive.Spec{ID: id, Paused: true}, dlq.By{Actor: "ana"})
		require.NoError(t, err)
	}
	for path, paged := range map[string]bool{
		"/entries": true, "/validation/dlq": true, "/groups": false, "/audit": true, "/runs": true, "/runs/{id}/items": true,
	} {
		t.Run(path, func(t *testing.T) {
			address := "/api/v1" + strings.Replace(path, "{id}", "first", 1) + "?limit="
			all := s.ask(t, http.MethodGet, address+"1000", "")
			require.Equal(t, http.StatusOK, all.status, all.body)
			n, more := listed(t, all)
			require.Greater(t, n, 1)
			require.False(t, more, "all are here: %s", all.body)
			exact := s.ask(t, http.MethodGet, address+strconv.Itoa(n), "")
			_, more = listed(t, exact)
			require.False(t, more, "exactly all are here: %s", exact.body)
			cut := s.ask(t, http.MethodGet, address+strconv.Itoa(n-1), "")
			got, more := listed(t, cut)
			require.Equal(t, n-1, got)
			require.True(t, more, "one is missing: %s", cut.body)
			require.Equal(t, paged, strings.HasSuffix(cut.header.Get("Link"), `>; rel="next"`))
			if paged {
				rest := strings.TrimPrefix(strings.TrimSuffix(cut.header.Get("Link"), `>; rel="next"`), "<")
				got, more = listed(t, s.ask(t, http.MethodGet, rest, ""))
				require.Equal(t, 1, got)
				require.False(t, more, "the last page")
			}
		})
	}
	require.Equal(t, []string{
		"/audit", "/entries", "/groups", "/runs", "/runs/{id}/items", "/validation/dlq",
	}, limited(t, s))
}

// listed counts the items of a list, and reports whether it announces more.
func listed(t *testing.T, a *answer) (n int, more bool) {
	t.Helper()
	var items []any
	if json.Unmarshal([]byte(a.body), &items) == nil {
		return len(items), a.header.Get("Link") != ""
	}
	var object map[string]any
	a.json(t, &object)
	for _, value := range object {
		if list, ok := value.([]any); ok {
			items = list
		}
	}
	says := object["next"] != nil || object["incomplete"] == true
	require.Equal(t, object["next"] != nil, a.header.Get("Link") != "", "the header and the body say the same")
	return len(items), says
}

// limited returns the addresses of the document that are read with a limit.
func limited(t *testing.T, s *server) []string {
	t.Helper()
	var document struct {
		Paths map[string]struct {
			Get struct{ Parameters []struct{ Name string } }
		}
	}
	s.ask(t, http.MethodGet, "/api/v1/openapi.json", "").json(t, &document)
	var paths []string
	for path, methods := range document.Paths {
		for _, p := range methods.Get.Parameters {
			if p.Name == "limit" {
				paths = append(paths, path)
			}
		}
	}
	slices.Sort(paths)
	return paths
}
