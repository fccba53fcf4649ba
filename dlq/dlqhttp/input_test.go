package dlqhttp_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bad input of every kind gets a precise answer as a problem, and changes nothing.
func TestBadInput(t *testing.T) {
	s := newServer(t)
	s.seed(t, 4)
	before := s.dump(t)
	for _, test := range slices.Concat(badQueries(), missing(), badBodies(), badRuns(), badHeaders()) {
		t.Run(test.name, func(t *testing.T) {
			header := test.headers
			if test.content != "" {
				header = append(header, "Content-Type", test.content)
			}
			a := s.ask(t, test.method, test.path, test.text, header...)
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

// badRequest is a request, and the status and a part of the detail that it is refused with.
type badRequest struct {
	name, method, path, content, text string
	headers                           []string
	status                            int
	want                              string
}

func bad(name, request string, status int, want string) badRequest {
	method, path, _ := strings.Cut(request, " ")
	return badRequest{name: name, method: method, path: path, status: status, want: want}
}

func (b badRequest) body(content, text string) badRequest {
	b.content, b.text = content, text
	return b
}

func (b badRequest) json(text string) badRequest { return b.body("application/json", text) }

func (b badRequest) header(name, value string) badRequest {
	b.headers = []string{name, value}
	return b
}

// badQueries are parameters that no route accepts.
func badQueries() []badRequest {
	return []badRequest{
		bad("unknown status", "GET /api/v1/entries?status=LOST", 422, "query.status"),
		bad("unknown reason", "GET /api/v1/entries?reason=bad", 422, "query.reason"),
		bad("negative limit", "GET /api/v1/entries?limit=-1", 422, "query.limit: expected number >= 1"),
		bad("limit of 0", "GET /api/v1/entries?limit=0", 422, "query.limit"),
		bad("large limit", "GET /api/v1/entries?limit=1001", 422, "query.limit: expected number <= 1000"),
		bad("limit no number", "GET /api/v1/entries?limit=ten", 422, "query.limit: invalid integer"),
		bad("forged cursor", "GET /api/v1/entries?cursor=forged", 422, "was not made by this store"),
		bad("cursor of another order", "GET /api/v1/entries?cursor=AW8AAAAAAAAAAQAAAAAAAAAB", 422,
			`listing with order "oldest"`),
		bad("forged audit cursor", "GET /api/v1/audit?cursor=!!", 422, "cursor"),
		bad("forged runs cursor", "GET /api/v1/runs?cursor=!!", 422, "cursor"),
		bad("unknown order", "GET /api/v1/entries?order=random", 422, "query.order"),
		bad("unknown parameter", "GET /api/v1/entries?colour=red", 422, "query.colour: unknown query parameter"),
		bad("invalid time", "GET /api/v1/entries?from=yesterday", 422, "query.from: invalid date/time"),
		bad("empty time range", "GET /api/v1/entries?from=2025-01-02T00:00:00Z&to=2025-01-01T00:00:00Z", 422,
			"empty time range"),
		bad("negative redrives", "GET /api/v1/entries?redrives=-1", 422, "query.redrives"),
		bad("id no number", "GET /api/v1/entries/abc", 422, "path.id: invalid integer"),
		bad("id 0", "GET /api/v1/entries/0", 422, "path.id"),
		bad("negative id", "GET /api/v1/entries/-1", 422, "path.id"),
		bad("id too large", "GET /api/v1/entries/99999999999999999999", 422, "path.id"),
		bad("invalid run id", "GET /api/v1/runs/a%20b", 422, "path.id"),
		bad("validation status", "GET /api/v1/validation/dlq?status=pending", 422, "query.status"),
		bad("restore what is pending", "POST /api/v1/entries/1/restore", 409, "cannot restore: it has been PENDING"),
		bad("NUL in a topic", "GET /api/v1/entries?topic=%00", 422, "query.topic: expected text"),
		bad("NUL in an error", "GET /api/v1/entries/count?error=a%00b", 422, "query.error: expected text"),
		bad("bytes in a cause", "GET /api/v1/groups?cause=%ff", 422, "query.cause: expected text"),
		bad("NUL in an actor", "GET /api/v1/audit?actor=%00", 422, "query.actor: expected text"),
		bad("NUL in a payload field", "GET /api/v1/entries?payload_fields=a%3D%00", 422,
			"query.payload_fields: expected text"),
		bad("payload field without a value", "GET /api/v1/entries?payload_fields=customer", 422,
			`payload_fields: invalid request: payload field "customer": the value is missing`),
		bad("revision beyond 32 bits", "GET /api/v1/entries/1/revisions/2147483648", 422,
			"path.revision: expected number <= 2.14"),
		bad("diff beyond 32 bits", "GET /api/v1/entries/1/diff?from=2147483648", 422,
			"query.from: expected number <= 2.14"),
		bad("redrives beyond 32 bits", "GET /api/v1/entries?redrives=9999999999", 422,
			"query.redrives: expected number <= 2.14"),
		bad("a time before year 1", "GET /api/v1/entries?from=0001-01-01T00:00:00%2B14:00", 422,
			"query.from: expected a time"),
		bad("cursor of year 294220", "GET /api/v1/entries?cursor=AW5__________wAAAAAAAAAB", 422,
			"was not made by this store"),
		bad("resolvedBy with ESC", "PUT /api/v1/validation/dlq/1/resolve?resolvedBy=a%1b%5b2Jb", 422,
			"query.resolvedBy: expected a name without control"),
		bad("resolvedBy from the right", "PUT /api/v1/validation/dlq/1/resolve?resolvedBy=%E2%80%AEana", 422,
			"query.resolvedBy: expected a name without control"),
	}
}

// missing is what does not exist: entries, runs, routes and methods.
func missing() []badRequest {
	return []badRequest{
		bad("unknown id", "GET /api/v1/entries/999", 404, "not found"),
		bad("payload not there", "GET /api/v1/entries/999/payload", 404, "not found"),
		bad("audit not there", "GET /api/v1/entries/999/audit", 404, "not found"),
		bad("revision not there", "GET /api/v1/entries/1/revisions/9", 404, "not found"),
		bad("diff not there", "GET /api/v1/entries/1/diff?to=9", 404, "not found"),
		bad("run not there", "GET /api/v1/runs/none", 404, "not found"),
		bad("items not there", "GET /api/v1/runs/none/items", 404, "not found"),
		bad("events not there", "GET /api/v1/runs/none/events", 404, "not found"),
		bad("redrive not there", "POST /api/v1/entries/999/redrive", 404, "not found"),
		bad("edit not there", "POST /api/v1/entries/999/edit", 404, "not found").json(`{"payload":"x"}`),
		bad("retry not there", "POST /api/v1/validation/dlq/999/retry", 404, "not found"),
		bad("resolve not there", "PUT /api/v1/validation/dlq/999/resolve", 404, "not found"),
		bad("delete not there", "DELETE /api/v1/validation/dlq/999", 404, "not found"),
		bad("route not there", "GET /api/v1/nothing", 404, "nothing is served at /api/v1/nothing"),
		bad("page not there", "GET /favicon.txt", 404, "nothing is served"),
		bad("missing id", "POST /api/v1/entries/redrive", 405,
			"is not allowed on /api/v1/entries/redrive: use GET or HEAD"),
		bad("another method", "DELETE /api/v1/entries/1", 405, "GET"),
		bad("method of livez", "POST /livez", 405, "GET"),
		bad("pause not there", "POST /api/v1/runs/none/pause", 404, "not found"),
	}
}

// badBodies are bodies of changes and edits.
func badBodies() []badRequest {
	return []badRequest{
		bad("wrong content type", "POST /api/v1/entries/1/resolve", 415, "unknown content type").
			body("text/plain", "note=x"),
		bad("form", "POST /api/v1/entries/bulk", 415, "unknown content type").
			body("application/x-www-form-urlencoded", "action=resolve"),
		bad("not JSON", "POST /api/v1/entries/1/resolve", 400, "unexpected end of JSON").json("{"),
		bad("unknown field", "POST /api/v1/entries/1/resolve", 422, "body.notes: unexpected property").
			json(`{"notes":"x"}`),
		bad("field of another type", "POST /api/v1/entries/1/resolve", 422, "body.note: expected string").
			json(`{"note":7}`),
		bad("long note", "POST /api/v1/entries/1/resolve", 422, "body.note: expected length <= 1000").
			json(`{"note":"` + strings.Repeat("x", 1001) + `"}`),
		bad("bulk without body", "POST /api/v1/entries/bulk", 400, "body is required").json(""),
		bad("bulk without filter", "POST /api/v1/entries/bulk", 422, "expected required property filter").
			json(`{"action":"discard"}`),
		bad("bulk of all", "POST /api/v1/entries/bulk", 422, "say which entries").
			json(`{"action":"discard","filter":{}}`),
		bad("bulk of an unknown state", "POST /api/v1/entries/bulk", 422, "body.filter.statuses").
			json(`{"action":"discard","filter":{"statuses":["X"]}}`),
		bad("unknown action", "POST /api/v1/entries/bulk", 422, "body.action").
			json(`{"action":"delete","filter":{"topic":"orders"}}`),
		bad("edit of nothing", "POST /api/v1/entries/1/edit", 422, "nothing to change").json(`{}`),
		bad("edit in two ways", "POST /api/v1/entries/1/edit", 422, "one of payload").json(`{"payload":"x","jq":"."}`),
		bad("edit of the identity", "POST /api/v1/entries/1/edit", 422, "cannot be edited").
			json(`{"set_headers":{"x-message-id":"y"}}`),
		bad("bad jq", "POST /api/v1/entries/1/edit", 422, "jq expression").json(`{"jq":".["}`),
		bad("jq that fails", "POST /api/v1/entries/1/edit/preview", 422, "jq").json(`{"jq":".order.x"}`),
		bad("jq without end", "POST /api/v1/entries/1/edit/preview", 422, "did not end within").
			json(`{"jq":"def f: f; f"}`),
		bad("invalid base64", "POST /api/v1/entries/1/edit", 422, "base64").json(`{"payload_base64":"***"}`),
		bad("NUL in a note", "POST /api/v1/entries/1/resolve", 422, "body.note: expected text").
			json(`{"note":"a\u0000b"}`),
		bad("NUL in a bulk's filter", "POST /api/v1/entries/bulk", 422, "body.filter.topic: expected text").
			json(`{"action":"park","filter":{"topic":"\u0000"}}`),
		bad("payload field of a bulk without a value", "POST /api/v1/entries/bulk", 422,
			`payload field "customer": the value is missing`).
			json(`{"action":"park","filter":{"payload_fields":["customer"]}}`),
		bad("payload field that is a number", "POST /api/v1/entries/bulk", 422,
			"body.filter.payload_fields[0]: expected string").
			json(`{"action":"park","filter":{"payload_fields":[7]}}`),
		bad("bulk beyond 32 bits", "POST /api/v1/entries/bulk", 422, "body.filter.redrives: expected number <=").
			json(`{"action":"park","filter":{"redrives":2147483648}}`),
	}
}

// badRuns are bodies of runs, purges and imports.
func badRuns() []badRequest {
	return []badRequest{
		bad("run of all", "POST /api/v1/runs", 422, "say which entries").json(`{"filter":{}}`),
		bad("preview of all", "POST /api/v1/runs/preview", 422, "say which entries").json(`{"filter":{}}`),
		bad("preview of an empty body", "POST /api/v1/runs/preview", 422, "filter").json(`{}`),
		bad("run of resolved", "POST /api/v1/runs", 422, "restore them first").
			json(`{"filter":{"statuses":["RESOLVED"]}}`),
		bad("run with bad jq", "POST /api/v1/runs", 422, "jq expression").json(`{"filter":{"topic":"orders"},"jq":".["}`),
		bad("run with a negative rate", "POST /api/v1/runs", 422, "body.rate").
			json(`{"filter":{"topic":"orders"},"rate":-1}`),
		bad("run with a bad id", "POST /api/v1/runs", 422, "body.id").json(`{"id":"a b","filter":{"topic":"orders"}}`),
		bad("run to an unknown target", "POST /api/v1/runs", 422, "not among the configured").
			json(`{"filter":{"topic":"orders"},"target":"moon"}`),
		bad("canary of 0", "POST /api/v1/runs", 422, "canary step 0").json(`{"filter":{"topic":"orders"},"canary":[0]}`),
		bad("adjust of nothing", "PATCH /api/v1/runs/none", 422, "nothing to change").json(`{}`),
		bad("purge of what waits", "POST /api/v1/purge", 422, "body.statuses").
			json(`{"statuses":["PENDING"],"closed_before":"2025-01-01T00:00:00Z"}`),
		bad("purge without a time", "POST /api/v1/purge", 422, "closed_before").json(`{}`),
		bad("purge of year 1", "POST /api/v1/purge", 422, "say how old").json(`{"closed_before":"0001-01-01T00:00:00Z"}`),
		bad("archive of nothing", "POST /api/v1/archive/restore", 422, "body.ids").json(`{"ids":[]}`),
		bad("import as JSON", "POST /api/v1/entries/import", 415, "application/jsonl").json(`{}`),
		bad("import of nonsense", "POST /api/v1/entries/import", 422, "line 1").body("application/jsonl", "{\"v\":1}\n"),
		bad("import of no JSON", "POST /api/v1/entries/import", 422, "line 1").body("application/jsonl", "hello\n"),
		bad("import of another day", "POST /api/v1/entries/import", 422, "version 99").
			body("application/jsonl", "{\"v\":99}\n"),
		bad("NUL in a run's jq", "POST /api/v1/runs", 422, "body.jq: expected text").
			json(`{"jq":".\u0000","filter":{"topic":"x"}}`),
		bad("payload field of a run without a name", "POST /api/v1/runs/preview", 422,
			`payload field "=1": a name is missing`).
			json(`{"filter":{"payload_fields":["=1"]}}`),
	}
}

// badHeaders are headers.
func badHeaders() []badRequest {
	return []badRequest{
		bad("invalid If-Match", "POST /api/v1/entries/1/resolve", 400, "If-Match is an ETag").
			header("If-Match", "latest"),
		bad("If-Match of 0", "POST /api/v1/entries/1/resolve", 400, "If-Match is an ETag").header("If-Match", `"0"`),
		bad("version that is gone", "POST /api/v1/entries/1/resolve", 412, "version 1").header("If-Match", `"7"`),
		bad("long idempotency key", "POST /api/v1/entries/1/resolve", 400, "1 to 255").
			header("Idempotency-Key", strings.Repeat("k", 256)),
		bad("odd idempotency key", "POST /api/v1/entries/1/resolve", 400, "visible ASCII").
			header("Idempotency-Key", "a b"),
		bad("huge header", "POST /api/v1/entries/1/resolve", 431, "the headers have").
			header("X-Huge", strings.Repeat("x", 40<<10)),
	}
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

// A body that consists of commas is refused before each of its values is decoded, checked and reported: 4 MB of them
// took 1.5 GB, 25 s and an answer of 350 MB. Texts are not counted, and few values have few faults.
func TestInput_ManyValues(t *testing.T) {
	s := newServer(t)
	s.seed(t, 1)
	const preview, edit = "/api/v1/runs/preview", "/api/v1/entries/1/edit/preview"
	for name, c := range map[string]struct {
		path, before, each, after string
		n, status                 int
	}{
		"texts":          {preview, `{"filter":{"statuses":["PENDING"`, `,""`, `]}}`, 100_000, http.StatusBadRequest},
		"lists":          {preview, `{"filter":{"ids":[1`, `,[]`, `]}}`, 100_000, http.StatusBadRequest},
		"nested":         {preview, `{"filter":{"x":[`, `[[[[{"a":0}]]]],`, `0]}}`, 25_000, http.StatusBadRequest},
		"few but wrong":  {preview, `{"filter":{"statuses":["PENDING"`, `,""`, `]}}`, 1_000, http.StatusUnprocessableEntity},
		"all ids":        {preview, `{"filter":{"ids":[1`, `,1`, `]}}`, 9_999, http.StatusOK},
		"too many ids":   {preview, `{"filter":{"ids":[1`, `,1`, `]}}`, 10_000, http.StatusUnprocessableEntity},
		"a long payload": {edit, `{"payload":"[\"\\`, `,[{`, `"}`, 100_000, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.ask(t, http.MethodPost, c.path, c.before+strings.Repeat(c.each, c.n)+c.after, "Content-Type",
				"application/json")
			require.Equal(t, c.status, a.status, a.body[:min(len(a.body), 500)])
			if c.status != http.StatusOK {
				require.Less(t, len(a.body), 32<<10)
			}
		})
	}
}
