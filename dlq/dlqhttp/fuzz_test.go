package dlqhttp_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Random requests for every route of the document: the server answers each of them, and never with an internal error.
// Half of the values fit the document, half are arbitrary.
func TestRandomRequests(t *testing.T) {
	s := newServer(t)
	s.seed(t, 6)
	all := operations(t, s)
	// it answers as long as the run lasts
	all = slices.DeleteFunc(all, func(o operation) bool { return o.id == "watch-run" })
	rapid.Check(t, func(r *rapid.T) {
		op := rapid.SampledFrom(all).Draw(r, "route")
		path, query := op.path, url.Values{}
		var header []string
		for _, p := range op.parameters {
			if p.in != "path" && !rapid.Bool().Draw(r, "send "+p.name) {
				continue
			}
			value := p.draw(r)
			switch p.in {
			case "path":
				path = strings.ReplaceAll(path, "{"+p.name+"}", url.PathEscape(value))
			case "query":
				query.Set(p.name, value)
			default:
				header = append(header, p.name, strings.Map(func(c rune) rune {
					if c < ' ' || c > '~' {
						return -1 // the client refuses to send it
					}
					return c
				}, value))
			}
		}
		body := ""
		if op.body || rapid.IntRange(0, 9).Draw(r, "odd body") == 0 {
			body = drawBody(r)
			header = append(header, "Content-Type",
				rapid.SampledFrom([]string{op.content, "application/json", "text/plain", "x", ""}).Draw(r, "type"))
		}
		if encoded := query.Encode(); encoded != "" {
			path += "?" + encoded
		}
		a := s.ask(t, op.method, path, body, header...)
		if a.status >= http.StatusInternalServerError {
			r.Fatalf("%s %s %q %q: %d %s\n%s", op.method, path, header, body, a.status, a.body, s.log)
		}
		if a.status >= http.StatusBadRequest && a.header.Get("Content-Type") != "application/problem+json" {
			r.Fatalf("%s %s: %d is no problem: %s", op.method, path, a.status, a.body)
		}
	})
	require.NotContains(t, s.log.String(), "panic")
}

func (p *parameter) draw(r *rapid.T) string {
	if rapid.IntRange(0, 3).Draw(r, "anything") == 0 {
		return rapid.SampledFrom([]string{
			"0", "-1", "9223372036854775807", "9223372036854775808", "1e9", "NaN", "null", "true", "'", "%00", "../..", "*",
			`"1"`, "😀", "\x00", "a b",
			strings.Repeat("x", 300), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", ",", "1,2,x",
		}).Draw(r, p.name)
	}
	switch {
	case len(p.enum) > 0:
		text, _ := rapid.SampledFrom(p.enum).Draw(r, p.name).(string)
		return text
	case p.name == "cursor":
		return rapid.SampledFrom([]string{"", "AW4AAAAAAAAAAQAAAAAAAAAB", "AW4ABkQBu_9xAAAAAAAAAAAF", "zzzz"}).Draw(r, p.name)
	case p.kind == "integer":
		return rapid.SampledFrom([]string{"1", "2", "3", "6", "7", "50"}).Draw(r, p.name)
	case p.kind == "boolean":
		return rapid.SampledFrom([]string{"true", "false"}).Draw(r, p.name)
	case p.format == "date-time":
		return rapid.SampledFrom([]string{"2025-11-20T07:30:00Z", "2026-11-20T07:30:00+02:00"}).Draw(r, p.name)
	default:
		return rapid.SampledFrom([]string{"orders", "RESOLVED", "bank", "1", "run-1", "nothing", "%", "_"}).Draw(r, p.name)
	}
}

// drawBody draws a body that is, or nearly is, a request of some route.
func drawBody(r *rapid.T) string {
	value := func(name string) string {
		return rapid.SampledFrom([]string{
			`"orders"`, `""`, `"PENDING"`, `["PENDING"]`, `["RESOLVED","PENDING"]`, `1`, `-1`, `0`, `1e300`, `1.5`, `null`,
			`true`, `[]`, `{}`, `[1,2]`, `[0]`,
			`"2025-11-20T07:30:00Z"`, `"2999-01-01T00:00:00Z"`, `{"topic":"orders"}`, `{"ids":[1,2,99]}`,
			`{"statuses":["PENDING"]}`, `{"x-a":"b"}`,
			`".total += 1"`, `".["`, `"resolve"`, `"discard"`, `"restore"`, `"park"`, `"AAEC"`, `"\u0000"`, `"run-1"`,
			`9223372036854775807`,
			`{"share":0.5,"min_sample":1}`, `[[[[]]]]`,
		}).Draw(r, name)
	}
	switch rapid.IntRange(0, 9).Draw(r, "body") {
	case 0:
		return rapid.SampledFrom([]string{
			"", "{", "null", "[]", "1", `"x"`, "\x00", `{"a":1}{"b":2}`,
			strings.Repeat("[", 5000),
		}).Draw(r, "raw")
	default:
		names := []string{
			"note", "action", "filter", "payload", "payload_base64", "jq", "set_headers", "remove_headers", "redrive", "id",
			"limit", "rate", "max_out",
			"canary", "stop", "target", "close_on_publish", "outcome_timeout_seconds", "paused", "sample", "statuses",
			"closed_before", "skip_archive",
			"ids", "unknown",
		}
		var fields []string
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 4, rapid.ID).Draw(r, "fields") {
			fields = append(fields, `"`+name+`":`+value(name))
		}
		return "{" + strings.Join(fields, ",") + "}"
	}
}
