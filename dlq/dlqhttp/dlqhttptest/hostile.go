// Package dlqhttptest is what every server of the API must pass, whatever store is behind it.
package dlqhttptest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile are values that no parameter is made for, each of which a store or its driver has choked on, or might.
var hostile = []string{
	"\x00", "a\x00b", "\xff\xfe", "\u202e", "\x1b[2J", "'", "\\", "%", "_", "-1", "0", "2147483648", "9223372036854775807",
	"9223372036854775808", "-9223372036854775808", "1e309", "NaN", "null", "[]", "0001-01-01T00:00:00Z",
	"0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00",
	"AW5__________wAAAAAAAAAB", "AW4AAAAAAAAAAf__________", strings.Repeat("x", 5000), "a=1,b", `a="\x00`, "😀",
}

// operation is a route of the document.
type operation struct {
	ID         string `json:"operationId"`
	Parameters []parameter
	Body       *struct {
		Content map[string]any
	} `json:"requestBody"`
	method, path, content string
}

type parameter struct{ Name, In, value string }

// Hostile asks every operation of the document of the API at base, https://host/api/v1 for example, with every
// hostile value for each of its parameters: no fault of the server's own, no words of a driver, and where a value is
// refused a problem that names the parameter. There must be an entry with id 1. The headers, pairs of names and values,
// authenticate an administrator.
func Hostile(t *testing.T, base string, header ...string) {
	t.Helper()
	tried := 0
	for _, op := range operations(t, base, header) {
		if op.ID == "watch-run" { // does not end
			continue
		}
		for _, p := range op.Parameters {
			for _, value := range hostile {
				if p.In == "header" && strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
					continue // no client sends it
				}
				tried++
				p.value = value
				try(t, base, &op, p, header)
			}
		}
	}
	require.Greater(t, tried, 1000)
}

func try(t *testing.T, base string, op *operation, p parameter, header []string) {
	t.Helper()
	path, query, with := op.path, url.Values{}, append(slices.Clone(header), "Content-Type", op.content)
	switch p.In {
	case "path":
		path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(p.value))
	case "query":
		query.Set(p.Name, p.value)
	default:
		with = append(with, p.Name, p.value)
	}
	path = strings.NewReplacer("{id}", "1", "{revision}", "0").Replace(path)
	status, body := ask(t, op.method, base+path+"?"+query.Encode(), with)
	what := op.method + " " + path + " " + p.Name + " " + p.value
	require.Less(t, status, http.StatusInternalServerError, "%s: %s", what, body)
	require.NotRegexp(t, `(?i)sqlstate|sqlite|syntax|constraint|driver|strconv|pgx|mysql`, body, what)
	if (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity) && p.In != "header" &&
		op.content == "" {
		require.Contains(t, body, p.Name, what)
	}
}

func operations(t *testing.T, base string, header []string) []operation {
	t.Helper()
	status, body := ask(t, http.MethodGet, base+"/openapi.json", header)
	require.Equal(t, http.StatusOK, status, body)
	var document struct {
		Paths map[string]map[string]operation
	}
	require.NoError(t, json.Unmarshal([]byte(body), &document))
	var all []operation
	for path, methods := range document.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			if op.Body != nil {
				for op.content = range op.Body.Content {
					break
				}
			}
			all = append(all, op)
		}
	}
	slices.SortFunc(all, func(a, b operation) int { return strings.Compare(a.ID, b.ID) })
	return all
}

func ask(t *testing.T, method, at string, header []string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, http.NoBody)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(data)
}
