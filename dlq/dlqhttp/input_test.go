package dlqhttp_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bad input of every kind gets a precise answer as a problem, and changes nothing.
func TestBadInput(t *testing.T) {
	s := newServer(t)
	s.seed(t, 4)
	before := s.dump(t)
	const jsonType = "application/json"
	for name, test := range map[string]struct {
		method, path, body, content string
		header                      []string
		status                      int
		want                        string
	}{
		"unknown status": {"GET", "/api/v1/entries?status=LOST", "", "", nil, 422, "query.status"},
		"unknown reason": {"GET", "/api/v1/entries?reason=bad", "", "", nil, 422, "query.reason"},
		"negative limit": {
			"GET", "/api/v1/entries?limit=-1", "", "", nil, 422,
			"query.limit: expected number >= 1",
		},
		"limit of 0": {"GET", "/api/v1/entries?limit=0", "", "", nil, 422, "query.limit"},
		"large limit": {
			"GET", "/api/v1/entries?limit=1001", "", "", nil, 422,
			"query.limit: expected number <= 1000",
		},
		"limit no number": {"GET", "/api/v1/entries?limit=ten", "", "", nil, 422, "query.limit: invalid integer"},
		"forged cursor":   {"GET", "/api/v1/entries?cursor=forged", "", "", nil, 422, "was not made by this store"},
		"cursor of another order": {
			"GET", "/api/v1/entries?cursor=AW8AAAAAAAAAAQAAAAAAAAAB", "", "", nil, 422,
			`listing with order "oldest"`,
		},
		"forged audit cursor": {"GET", "/api/v1/audit?cursor=!!", "", "", nil, 422, "cursor"},
		"forged runs cursor":  {"GET", "/api/v1/runs?cursor=!!", "", "", nil, 422, "cursor"},
		"unknown order":       {"GET", "/api/v1/entries?order=random", "", "", nil, 422, "query.order"},
		"unknown parameter": {
			"GET", "/api/v1/entries?colour=red", "", "", nil, 422,
			"query.colour: unknown query parameter",
		},
		"invalid time": {
			"GET", "/api/v1/entries?from=yesterday", "", "", nil, 422,
			"query.from: invalid date/time",
		},
		"empty time range": {
			"GET", "/api/v1/entries?from=2025-01-02T00:00:00Z&to=2025-01-01T00:00:00Z", "", "", nil,
			422, "empty time range",
		},
		"negative redrives":  {"GET", "/api/v1/entries?redrives=-1", "", "", nil, 422, "query.redrives"},
		"id no number":       {"GET", "/api/v1/entries/abc", "", "", nil, 422, "path.id: invalid integer"},
		"id 0":               {"GET", "/api/v1/entries/0", "", "", nil, 422, "path.id"},
		"negative id":        {"GET", "/api/v1/entries/-1", "", "", nil, 422, "path.id"},
		"id too large":       {"GET", "/api/v1/entries/99999999999999999999", "", "", nil, 422, "path.id"},
		"unknown id":         {"GET", "/api/v1/entries/999", "", "", nil, 404, "no such entry"},
		"payload not there":  {"GET", "/api/v1/entries/999/payload", "", "", nil, 404, "no such entry"},
		"audit not there":    {"GET", "/api/v1/entries/999/audit", "", "", nil, 404, "no such entry"},
		"revision not there": {"GET", "/api/v1/entries/1/revisions/9", "", "", nil, 404, "no such"},
		"diff not there":     {"GET", "/api/v1/entries/1/diff?to=9", "", "", nil, 404, "no such"},
		"run not there":      {"GET", "/api/v1/runs/none", "", "", nil, 404, "no such"},
		"items not there":    {"GET", "/api/v1/runs/none/items", "", "", nil, 404, "no such"},
		"events not there":   {"GET", "/api/v1/runs/none/events", "", "", nil, 404, "no such"},
		"invalid run id":     {"GET", "/api/v1/runs/a%20b", "", "", nil, 422, "path.id"},
		"redrive not there":  {"POST", "/api/v1/entries/999/redrive", "", "", nil, 404, "no such entry"},
		"edit not there": {
			"POST", "/api/v1/entries/999/edit", `{"payload":"x"}`, jsonType, nil, 404,
			"no such entry",
		},
		"retry not there":         {"POST", "/api/v1/validation/dlq/999/retry", "", "", nil, 404, "no such entry"},
		"resolve not there":       {"PUT", "/api/v1/validation/dlq/999/resolve", "", "", nil, 404, "no such entry"},
		"delete not there":        {"DELETE", "/api/v1/validation/dlq/999", "", "", nil, 404, "no such entry"},
		"validation status":       {"GET", "/api/v1/validation/dlq?status=pending", "", "", nil, 422, "query.status"},
		"route not there":         {"GET", "/api/v1/nothing", "", "", nil, 404, "nothing is served at /api/v1/nothing"},
		"page not there":          {"GET", "/favicon.txt", "", "", nil, 404, "nothing is served"},
		"missing id":              {"POST", "/api/v1/entries/redrive", "", "", nil, 405, "is not for"},
		"another method":          {"DELETE", "/api/v1/entries/1", "", "", nil, 405, "GET"},
		"method of livez":         {"POST", "/livez", "", "", nil, 405, "GET"},
		"restore what is pending": {"POST", "/api/v1/entries/1/restore", "", "", nil, 409, "cannot restore: it is PENDING"},
		"wrong content type": {
			"POST", "/api/v1/entries/1/resolve", "note=x", "text/plain", nil, 415,
			"unknown content type",
		},
		"form": {
			"POST", "/api/v1/entries/bulk", "action=resolve", "application/x-www-form-urlencoded",
			nil, 415, "unknown content type",
		},
		"not JSON": {"POST", "/api/v1/entries/1/resolve", "{", jsonType, nil, 400, "unexpected end of JSON"},
		"unknown field": {
			"POST", "/api/v1/entries/1/resolve", `{"notes":"x"}`, jsonType, nil, 422,
			"body.notes: unexpected property",
		},
		"field of another type": {
			"POST", "/api/v1/entries/1/resolve", `{"note":7}`, jsonType, nil, 422,
			"body.note: expected string",
		},
		"long note": {
			"POST", "/api/v1/entries/1/resolve", `{"note":"` + strings.Repeat("x", 1001) + `"}`,
			jsonType, nil, 422, "body.note: expected length <= 1000",
		},
		"invalid If-Match": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"If-Match", "latest"},
			400,
			"If-Match is an ETag",
		},
		"If-Match of 0": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"If-Match", `"0"`},
			400,
			"If-Match is an ETag",
		},
		"version that is gone": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"If-Match", `"7"`},
			412,
			"version 1",
		},
		"bulk without body": {"POST", "/api/v1/entries/bulk", "", jsonType, nil, 400, "body is required"},
		"bulk without filter": {
			"POST", "/api/v1/entries/bulk", `{"action":"discard"}`, jsonType, nil, 422,
			"expected required property filter",
		},
		"bulk of all": {
			"POST", "/api/v1/entries/bulk", `{"action":"discard","filter":{}}`, jsonType, nil, 422,
			"say which entries",
		},
		"bulk of an unknown state": {
			"POST", "/api/v1/entries/bulk", `{"action":"discard","filter":{"statuses":["X"]}}`,
			jsonType, nil, 422, "body.filter.statuses",
		},
		"unknown action": {
			"POST", "/api/v1/entries/bulk", `{"action":"delete","filter":{"topic":"orders"}}`,
			jsonType, nil, 422, "body.action",
		},
		"edit of nothing": {"POST", "/api/v1/entries/1/edit", `{}`, jsonType, nil, 422, "nothing to change"},
		"edit in two ways": {
			"POST", "/api/v1/entries/1/edit", `{"payload":"x","jq":"."}`, jsonType, nil, 422,
			"one of payload",
		},
		"edit of the identity": {
			"POST", "/api/v1/entries/1/edit", `{"set_headers":{"x-message-id":"y"}}`, jsonType, nil,
			422, "cannot be edited",
		},
		"bad jq": {"POST", "/api/v1/entries/1/edit", `{"jq":".["}`, jsonType, nil, 422, "jq expression"},
		"jq that fails": {
			"POST", "/api/v1/entries/1/edit/preview", `{"jq":".order.x"}`, jsonType, nil, 422,
			"jq",
		},
		"jq without end": {
			"POST", "/api/v1/entries/1/edit/preview", `{"jq":"def f: f; f"}`, jsonType, nil, 422,
			"did not end within",
		},
		"invalid base64": {
			"POST", "/api/v1/entries/1/edit", `{"payload_base64":"***"}`, jsonType, nil, 422,
			"base64",
		},
		"run of all": {"POST", "/api/v1/runs", `{"filter":{}}`, jsonType, nil, 422, "say which entries"},
		"run of resolved": {
			"POST", "/api/v1/runs", `{"filter":{"statuses":["RESOLVED"]}}`, jsonType, nil, 422,
			"restore them first",
		},
		"run with bad jq": {
			"POST", "/api/v1/runs", `{"filter":{"topic":"orders"},"jq":".["}`, jsonType, nil, 422,
			"jq expression",
		},
		"run with a negative rate": {
			"POST", "/api/v1/runs", `{"filter":{"topic":"orders"},"rate":-1}`, jsonType, nil, 422,
			"body.rate",
		},
		"run with a bad id": {
			"POST", "/api/v1/runs", `{"id":"a b","filter":{"topic":"orders"}}`, jsonType, nil, 422,
			"body.id",
		},
		"run to an unknown target": {
			"POST", "/api/v1/runs", `{"filter":{"topic":"orders"},"target":"moon"}`, jsonType, nil,
			422, "not among the configured",
		},
		"canary of 0": {
			"POST", "/api/v1/runs", `{"filter":{"topic":"orders"},"canary":[0]}`, jsonType, nil,
			422, "canary step 0",
		},
		"adjust of nothing": {"PATCH", "/api/v1/runs/none", `{}`, jsonType, nil, 422, "nothing to change"},
		"pause not there":   {"POST", "/api/v1/runs/none/pause", "", "", nil, 404, "no such"},
		"purge of what waits": {
			"POST", "/api/v1/purge",
			`{"statuses":["PENDING"],"closed_before":"2025-01-01T00:00:00Z"}`, jsonType, nil, 422, "body.statuses",
		},
		"purge without a time": {"POST", "/api/v1/purge", `{}`, jsonType, nil, 422, "closed_before"},
		"purge of year 1": {
			"POST", "/api/v1/purge", `{"closed_before":"0001-01-01T00:00:00Z"}`, jsonType, nil, 422,
			"say how old",
		},
		"archive of nothing": {"POST", "/api/v1/archive/restore", `{"ids":[]}`, jsonType, nil, 422, "body.ids"},
		"import as JSON":     {"POST", "/api/v1/entries/import", `{}`, jsonType, nil, 415, "application/jsonl"},
		"import of nonsense": {
			"POST", "/api/v1/entries/import", "{\"v\":1}\n", "application/jsonl", nil, 422,
			"line 1",
		},
		"import of no JSON": {"POST", "/api/v1/entries/import", "hello\n", "application/jsonl", nil, 422, "line 1"},
		"import of another day": {
			"POST", "/api/v1/entries/import", "{\"v\":99}\n", "application/jsonl", nil, 422,
			"version 99",
		},
		"long idempotency key": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"Idempotency-Key", strings.Repeat("k", 256)},
			400, "1 to 255",
		},
		"odd idempotency key": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"Idempotency-Key", "a b"},
			400,
			"visible ASCII",
		},
		"NUL in a topic": {"GET", "/api/v1/entries?topic=%00", "", "", nil, 422, "query.topic: expected text"},
		"NUL in an error": {
			"GET", "/api/v1/entries/count?error=a%00b", "", "", nil, 422,
			"query.error: expected text",
		},
		"bytes in a cause": {"GET", "/api/v1/groups?cause=%ff", "", "", nil, 422, "query.cause: expected text"},
		"NUL in an actor":  {"GET", "/api/v1/audit?actor=%00", "", "", nil, 422, "query.actor: expected text"},
		"NUL in a note": {
			"POST", "/api/v1/entries/1/resolve", `{"note":"a\u0000b"}`, jsonType, nil, 422,
			"body.note: expected text",
		},
		"NUL in a bulk's filter": {
			"POST", "/api/v1/entries/bulk", `{"action":"park","filter":{"topic":"\u0000"}}`,
			jsonType, nil, 422, "body.filter.topic: expected text",
		},
		"NUL in a run's jq": {
			"POST", "/api/v1/runs", `{"jq":".\u0000","filter":{"topic":"x"}}`, jsonType, nil, 422,
			"body.jq: expected text",
		},
		"NUL in a payload field": {
			"GET", "/api/v1/entries?payload_fields=a%3D%00", "", "", nil, 422,
			"query.payload_fields: expected text",
		},
		"revision beyond 32 bits": {
			"GET", "/api/v1/entries/1/revisions/2147483648", "", "", nil, 422,
			"path.revision: expected number <= 2.14",
		},
		"diff beyond 32 bits": {
			"GET", "/api/v1/entries/1/diff?from=2147483648", "", "", nil, 422,
			"query.from: expected number <= 2.14",
		},
		"redrives beyond 32 bits": {
			"GET", "/api/v1/entries?redrives=9999999999", "", "", nil, 422,
			"query.redrives: expected number <= 2.14",
		},
		"bulk beyond 32 bits": {
			"POST", "/api/v1/entries/bulk", `{"action":"park","filter":{"redrives":2147483648}}`,
			jsonType, nil, 422, "body.filter.redrives: expected number <=",
		},
		"a time before year 1": {
			"GET", "/api/v1/entries?from=0001-01-01T00:00:00%2B14:00", "", "", nil, 422,
			"query.from: expected a time",
		},
		"cursor of year 294220": {
			"GET", "/api/v1/entries?cursor=AW5__________wAAAAAAAAAB", "", "", nil, 422,
			"was not made by this store",
		},
		"resolvedBy with ESC": {
			"PUT", "/api/v1/validation/dlq/1/resolve?resolvedBy=a%1b%5b2Jb", "", "", nil, 422,
			"query.resolvedBy: expected a name without control",
		},
		"resolvedBy from the right": {
			"PUT", "/api/v1/validation/dlq/1/resolve?resolvedBy=%E2%80%AEana", "", "", nil, 422,
			"query.resolvedBy: expected a name without control",
		},
		"huge header": {
			"POST", "/api/v1/entries/1/resolve", "", "",
			[]string{"X-Huge", strings.Repeat("x", 40<<10)},
			431, "the headers have",
		},
	} {
		t.Run(name, func(t *testing.T) {
			header := test.header
			if test.content != "" {
				header = append(header, "Content-Type", test.content)
			}
			a := s.ask(t, test.method, test.path, test.body, header...)
			require.Equal(t, test.status, a.status, a.body)
			require.Equal(t, "application/problem+json", a.header.Get("Content-Type"))
			require.InDelta(t, float64(test.status), a.at(t, "status"), 0)
			require.Equal(t, http.StatusText(test.status), a.at(t, "title"))
			require.Contains(t, a.at(t, "detail"), test.want)
			require.Less(t, len(a.body), 4000, "the request is not echoed")
		})
	}
	require.Equal(t, before, s.dump(t))
}

// An endless body is refused at the limit, on every route and with any key, and changes nothing.
func TestBadInput_HugeBody(t *testing.T) {
	s := newServer(t)
	s.seed(t, 1)
	before := s.dump(t)
	const size = 100 << 20
	for name, header := range map[string][]string{"plain": nil, "with a key": {"Idempotency-Key", "huge"}} {
		for _, path := range []string{
			"/api/v1/entries/1/edit", "/api/v1/entries/1/resolve", "/api/v1/runs",
			"/api/v1/validation/dlq/1/retry",
		} {
			t.Run(name+path, func(t *testing.T) {
				body := io.MultiReader(strings.NewReader(`{"payload":"`), io.LimitReader(zeros{}, size), strings.NewReader(`"}`))
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, body)
				require.NoError(t, err)
				r.Header.Set("Content-Type", "application/json")
				for i := 0; i < len(header); i += 2 {
					r.Header.Set(header[i], header[i+1])
				}
				response, err := http.DefaultTransport.RoundTrip(r)
				if err != nil {
					return // the server has hung up while we were still sending
				}
				defer func() { require.NoError(t, response.Body.Close()) }()
				require.Equal(t, http.StatusRequestEntityTooLarge, response.StatusCode)
				require.Equal(t, "application/problem+json", response.Header.Get("Content-Type"))
			})
		}
	}
	require.Equal(t, before, s.dump(t))
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}
