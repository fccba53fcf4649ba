package dlqhttp_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// secrets are the values of one store that its roles may not see.
type secrets struct {
	cpf, mail, password, bytes string
	// mails, unless empty, are the addresses of its messages, one after the other, instead of mail.
	mails string
}

// at are the secrets in the i-th message.
func (s secrets) at(i int) secrets {
	if s.mails != "" {
		mails := strings.Fields(s.mails)
		s.mail = mails[i%len(mails)]
	}
	return s
}

// trace is the id of a trace that only its own store has.
func (s secrets) trace() string {
	sum := sha256.Sum256([]byte(s.password))
	return hex.EncodeToString(sum[:16])
}

// secretive returns a server whose store has the secrets wherever a message can carry them.
func secretive(t *testing.T, of secrets) (*server, *logbuffer.Buffer) {
	t.Helper()
	rules, err := redact.New(redact.Config{
		Paths: []string{"$..cpf"}, Headers: []string{"authorization", "source_*", envelope.KeyTraceParent},
		Texts: []string{`\d{3}\.\d{3}\.\d{3}-\d{2}`, `[a-z]+@[a-z]+`},
	})
	require.NoError(t, err)
	log := &logbuffer.Buffer{}
	s := newServer(t, func(c *dlqhttp.Config) {
		c.ReadAlways()
		c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin
		c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{ReplaceAttr: rules.LogAttr}))
	})
	s.handler.RecordEveryGuess()
	died := time.Date(2025, 11, 20, 7, 30, 0, 0, time.UTC)
	var letters []*dlq.Entry
	for i := range 6 {
		of := of.at(i)
		payload := []string{
			`{"order":1,"customer":{"cpf":"` + of.cpf + `"}}`,
			`{"order":2,"cpf":` + strings.NewReplacer(".", "", "-", "").Replace(of.cpf) + `}`,
			`{"mail":"` + strings.Replace(of.mail, "@", `\u0040`, 1) + `"}`,
			"\xff" + of.bytes,
			strings.Join(strings.Split(of.mail, ""), "\x00"),
			`{"plain":true}`,
		}[i]
		m := message.NewMessage("uuid "+of.mail, []byte(payload))
		m.Metadata = message.Metadata{
			envelope.KeyMessageID: fmt.Sprintf("message %d of %s", i, of.mail), envelope.KeyEvent: "placed by " + of.mail,
			envelope.KeyCorrelationID: of.cpf,
			"source_id":               of.password, envelope.KeyTraceParent: "00-" + of.trace() + "-00f067aa0ba902b7-01",
			"authorization": of.password, "note": "for " + of.mail, "bytes": "\xff" + of.bytes,
		}
		letters = append(letters, dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Attempts: 4, Class: "*bank.Error", Handler: "pay",
			At:           died.Add(time.Duration(i) * time.Minute),
			FirstFailure: died, Err: envelope.Error{
				Message: fmt.Sprintf("no account of %s with %s", of.mail, of.cpf),
				Code:    "422", Trace: "for " + of.mail,
			},
			Origin: envelope.Origin{
				Broker: "mem", Topic: "orders", Consumer: "billing", RoutingKey: of.mail,
				Key: []byte(of.mail), Position: strconv.Itoa(i),
			},
		}))
	}
	_, err = s.letters.Store().Put(t.Context(), letters...)
	require.NoError(t, err)
	by := dlq.By{Actor: "root", Note: "called " + of.mail}
	_, _, err = s.manager.Edit(t.Context(), 1,
		dlq.Edit{Payload: []byte(`{"order":1,"customer":{"cpf":"` + of.cpf + `"},"new":1}`)}, by)
	require.NoError(t, err)
	_, err = s.runner.StartRun(t.Context(), redrive.Spec{ID: "run-1", JQ: `.cpf = "` + of.cpf + `"`, Filter: dlq.Filter{
		IDs: []int64{99}, ErrorText: of.mail, PayloadText: of.cpf, EventID: of.mail, Fingerprint: letters[0].Fingerprint,
	}}, by)
	require.NoError(t, err)
	_, err = s.manager.Resolve(t.Context(), 2, by)
	require.NoError(t, err)
	return s, log
}

// when matches times during the test, and whatever else differs between any two servers.
var when = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?Z?|time=\S+|\d\d:\d\d(:\d\d)?Z?` +
	`|"mean_resolution_seconds":[\d.e+]+|\d+ (seconds?|s|min|h)( ago)?|just now|127\.0\.0\.1:\d+` +
	`|\d{4}-\d\d-\d\dT\d\d%3A\d\d%3A\d\dZ|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}` +
	`|/audit\?[^"> ]*(after|cursor)=[\w-]+`) // a position in the audit log is a time

// nextPage matches the position behind a page.
var nextPage = regexp.MustCompile(`,"next":"[\w-]+"`)

// secret is a part of each.
var secret = regexp.MustCompile(`\d{3}\.\d{3}|(ana|bob|maximiliane)(@|%40)|horse|stapl|much longer`)

// masked returns two answers without differences that any two servers have. Equal lines are left alone: most are, and
// the expression is slow.
func masked(first, second string) (string, string) {
	one, other := strings.SplitAfter(first, "\n"), strings.SplitAfter(second, "\n")
	if len(one) != len(other) {
		return mask(first), mask(second)
	}
	for i := range one {
		if one[i] != other[i] {
			one[i], other[i] = mask(one[i]), mask(other[i])
		}
	}
	return strings.Join(one, ""), strings.Join(other, "")
}

// mask replaces times during the test. The position behind a page of the audit log is one of them; those of entries,
// which died long ago, are compared.
func mask(answer string) string {
	return when.ReplaceAllString(nextPage.ReplaceAllStringFunc(answer, func(found string) string {
		_, position, err := driver.Page{After: found[len(`,"next":"`) : len(found)-1]}.Resolve()
		if err == nil && position != nil && time.Since(position.At) < time.Hour {
			return `,"next":"T"`
		}
		return found
	}), "T")
}

// shown is the answer of a server to a role.
func shown(t *testing.T, s *server, role, request, body string) string {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	a := s.ask(t, method, path, body, append(as(role), "Content-Type", "application/json", "Accept", "application/xhtml+xml")...)
	return fmt.Sprint(a.status, " ", a.header.Get("ETag"), " ", a.header.Get("Link"), " ",
		a.header.Get("Content-Disposition"), "\n", a.body)
}

// seen has everything that a role is shown of a server, by request.
func seen(t *testing.T, s *server, role string, guess secrets) map[string]string {
	t.Helper()
	all := map[string]string{}
	ask := func(method, path, body string) {
		all[method+" "+path+" "+body] = shown(t, s, role, method+" "+path, body)
	}
	for _, op := range operations(t, s, as("viewer")...) {
		if op.method != http.MethodGet {
			continue
		}
		for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
			path := strings.ReplaceAll(op.path, "{revision}", "0")
			if strings.HasPrefix(op.path, "/api/v1/runs/") {
				id = "run-1"
			}
			ask(http.MethodGet, strings.ReplaceAll(path, "{id}", id), "")
		}
	}
	for _, page := range []string{
		"/", "/groups", "/report", "/report.md", "/report.json", "/entries", "/entries?status=any", "/entries/1",
		"/entries/1?revision=0", "/entries/2", "/entries/3", "/entries/4",
		"/entries/5", "/entries/6", "/entries/1/payload", "/entries/1/edit", "/entries/act?do=park&scope=all&topic=orders",
		"/runs", "/runs/run-1", "/runs/new?topic=orders",
		"/retention?days=1&resolved=1", "/audit", "/system",
	} {
		ask(http.MethodGet, page, "")
	}
	// Guesses, each of which is right in one of the stores: by search, count, sort, group, edit and preview.
	fingerprint := dlq.Fingerprint("pay", "*bank.Error", "422",
		fmt.Sprintf("no account of %s with %s", guess.mail, guess.cpf))
	for _, q := range []url.Values{
		{"error": {guess.cpf[:2]}},
		{"error": {guess.mail[:2]}},
		{"cause": {guess.mail[:2]}},
		{"payload": {guess.cpf[:2]}},
		{"payload_fields": {"cpf=" + guess.cpf}},
		{"event_id": {"message 0 of " + guess.mail}},
		{"correlation_id": {guess.cpf}},
		{"event_type": {"placed by " + guess.mail}},
		{"source_id": {guess.password}},
		{"trace_id": {guess.trace()}},
		{"fingerprint": {fingerprint}},
	} {
		for _, path := range []string{"/api/v1/entries", "/api/v1/entries/count", "/api/v1/entries/export"} {
			ask(http.MethodGet, path+"?"+q.Encode(), "")
		}
	}
	ask(http.MethodGet, "/api/v1/groups?fingerprint="+fingerprint, "")
	ask(http.MethodGet, "/api/v1/groups?cause="+url.QueryEscape(guess.mail[:2]), "")
	ask(http.MethodGet, "/groups/"+fingerprint, "")
	ask(http.MethodGet, "/groups?q="+url.QueryEscape(guess.mail[:2]), "")
	ask(http.MethodGet, "/entries?group="+fingerprint, "")
	ask(http.MethodGet, "/entries?q="+url.QueryEscape(guess.mail[:2]), "")
	ask(http.MethodGet, "/entries?correlation="+url.QueryEscape(guess.cpf), "")
	for _, edit := range []string{
		`{"payload":"{\"order\":1,\"customer\":{\"cpf\":\"` + guess.cpf + `\"},\"new\":1}"}`,
		`{"set_headers":{"authorization":"` + guess.password + `"}}`,
		`{"set_headers":{"note":"for ` + guess.mail + `"}}`, `{"remove_headers":["authorization"]}`, `{"jq":"."}`,
	} {
		ask(http.MethodPost, "/api/v1/entries/1/edit/preview", edit)
		ask(http.MethodPost, "/api/v1/entries/1/edit", edit)
	}
	for _, filter := range []string{
		`{"topic":"orders"}`, `{"fingerprint":"` + fingerprint + `"}`,
		`{"error":"` + guess.mail[:2] + `"}`, `{"correlation_id":"` + guess.cpf + `"}`,
	} {
		ask(http.MethodPost, "/api/v1/runs/preview", `{"filter":`+filter+`}`)
	}
	for _, form := range []url.Values{
		{"new_header": {"authorization"}, "new_value": {guess.password}},
		{"payload": {`{"order":1,"customer":{"cpf":"` + guess.cpf + `"},"new":1}`}},
	} {
		form.Set("do", "preview")
		a := s.ask(t, http.MethodPost, "/entries/1/edit", form.Encode(),
			append(as(role), "Content-Type", "application/x-www-form-urlencoded", "Accept", "application/xhtml+xml")...)
		all["edit form "+form.Encode()] = fmt.Sprint(a.status, a.body)
	}
	return all
}

// curve is the beginning of the five minutes in which curves count what happens now.
func curve() time.Time { return time.Now().UTC().Truncate(5 * time.Minute) }

// Two stores that differ only in what a role may not see show that role the same bytes: on every route and page, in
// exports, the event stream, errors, counts, sorts, ETags, digests, and the log; whatever it guesses.
func TestNonInterference(t *testing.T) {
	one := secrets{"111.222.333-44", "ana@example", "correct horse", "abc", ""}
	for name, other := range map[string]secrets{
		"same length":    {"999.888.777-66", "bob@example", "battery stapl", "xyz", ""},
		"another length": {"100.200.300-40", "maximiliane@elsewhere", "x", "something much longer", ""},
		"many values": {
			"999.888.777-66", "bob@example", "battery stapl", "xyz",
			"bob@example ana@example ana@elsewhere bob@elsewhere ana@elsewhere maximiliane@example",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var a, b *server
			var aLog, bLog *logbuffer.Buffer
			for began := (time.Time{}); began != curve(); { // a curve shows on which side of five minutes each was closed
				began = curve()
				a, aLog = secretive(t, one)
				b, bLog = secretive(t, other)
			}
			for _, role := range []string{"viewer", "operator", "approver"} {
				for _, guess := range []secrets{one, other} {
					if guess != other && name != "same length" || role == "approver" && guess == other {
						continue // seen already, by this role or by an operator
					}
					first, second := seen(t, a, role, guess), seen(t, b, role, guess)
					require.Greater(t, len(first), 100)
					for asked := range first {
						left, right := masked(first[asked], second[asked])
						if path, ok := strings.CutPrefix(asked, http.MethodGet+" "); ok && left != right {
							// A curve has moved on by five minutes between the two, or an hour has ended: both are requested again, at once.
							path = "GET " + strings.TrimSuffix(path, " ")
							left, right = masked(shown(t, a, role, path, ""), shown(t, b, role, path, ""))
						}
						require.Equal(t, left, right, "%s: %s", role, asked)
						if !secret.MatchString(asked) { // otherwise the answer may repeat the request
							require.False(t, secret.MatchString(right), "%s: %s: %s", role, asked, right)
						}
					}
				}
			}
			left, right := masked(aLog.String(), bLog.String())
			require.Equal(t, left, right)
		})
	}
}

// However many causes look the same to a role, it sees one, with all of its entries, and the others next to it.
func TestNonInterference_ManyCauses(t *testing.T) {
	const variants = 1_100 // more than a caller may request
	rules, err := redact.New(redact.Config{Texts: []string{`[a-z]+@[a-z]+`}})
	require.NoError(t, err)
	at := time.Now().Add(-2 * time.Hour).Truncate(time.Hour)
	serve := func(mail func(i int) string) *server {
		s := newServer(t, func(c *dlqhttp.Config) { c.Auth, c.Redaction, c.RevealTo = bearer(t), rules, dlqhttp.Admin })
		letters := make([]*dlq.Entry, 0, variants+1)
		for i := range variants + 1 {
			text := "no account of " + mail(i)
			if i == variants {
				text = "the bank is closed"
			}
			letters = append(letters, dlq.NewEntry(&envelope.DeadLetter{
				Message: message.NewMessage(strconv.Itoa(i), nil), Reason: envelope.ReasonExhausted, At: at,
				Err: envelope.Error{Message: text}, Handler: "pay", Origin: envelope.Origin{Broker: "mem", Topic: "orders"},
			}))
		}
		_, err := s.letters.Store().Put(t.Context(), letters...)
		require.NoError(t, err)
		return s
	}
	letter := func(n int) string { return string(rune('a' + n)) }
	one := serve(func(int) string { return "ana@example" })
	many := serve(func(i int) string { return letter(i%26) + letter(i/26%26) + letter(i/676) + "@example" })
	require.Contains(t, shown(t, one, "viewer", "GET /api/v1/groups", ""), `"pending":1100`)
	for _, request := range []string{
		"/api/v1/groups", "/api/v1/groups?limit=1000", "/api/v1/groups?limit=1", "/api/v1/stats", "/api/v1/report",
		"/groups", "/report", "/report.md", "/report.json", "/",
	} {
		var left, right string
		for range 2 { // a curve may move on by five minutes between the two, or an hour end
			if left, right = masked(shown(t, one, "viewer", "GET "+request, ""),
				shown(t, many, "viewer", "GET "+request, "")); left == right {
				break
			}
		}
		require.Equal(t, left, right, request)
	}
}
