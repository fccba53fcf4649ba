package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/redrive"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// exempt are the operations without a method of the client, and why.
var exempt = map[string]string{
	"validation-list":    "for services that call the four routes of the seed's table already",
	"validation-retry":   "the same: redrive-entry is the method",
	"validation-resolve": "the same: resolve-entry is the method",
	"validation-discard": "the same: discard-entry is the method",
}

type taker struct{}

func (taker) Reschedule(context.Context, envelope.Origin, *message.Message, time.Duration) error {
	return nil
}

// server is a dlqhttp.Handler with some dead letters; requests are recorded.
type server struct {
	url    string
	mu     sync.Mutex
	asked  []*http.Request
	answer http.Handler // instead of the handler
}

func newServer(t *testing.T) *server {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+storetest.File(t)+"?synchronous=normal",
		dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	var entries []*dlq.Entry
	for i := range 5 {
		m := message.NewMessage(fmt.Sprintf("m-%d", i), fmt.Appendf(nil, `{"n":%d}`, i))
		m.Metadata.Set("bytes", "\xff")
		if i == 0 {
			m.Payload = []byte("\xff\x00")
			m.Metadata.Set("\xfe", "name")
		}
		entries = append(entries, dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Err: envelope.Error{Message: "bank: timeout", Code: "504", Trace: "main.go:1"},
			Reason: envelope.ReasonExhausted, Attempts: 4,
			Class: "*bank.Error", Handler: "pay", At: time.Now(), FirstFailure: time.Now(),
			Origin: envelope.Origin{
				Broker: "mem", Topic: "orders", Consumer: "billing", RoutingKey: "a\xffb", Key: []byte{1},
				Timestamp: time.Now(),
			},
		}))
	}
	_, err = letters.Store().Put(t.Context(), entries...)
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	limited, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: taker{}, Approval: &dlq.Approval{Above: 3}, Logger: quiet,
	})
	require.NoError(t, err)
	runner, err := redrive.NewRunner(limited, redrive.Config{})
	require.NoError(t, err)
	s := &server{}
	handler, err := dlqhttp.New(dlqhttp.Config{
		Manager: letters.Manager(taker{}), Runner: runner, Logger: quiet, Limits: dlqhttp.Limits{Rate: -1},
		Settings: map[string]string{"a": "b"},
		Topology: func(context.Context) (any, error) { return []string{"orders"}, nil },
		Rules:    []redrive.Rule{{Name: "banks"}},
	})
	require.NoError(t, err)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked = append(s.asked, r)
		next := http.Handler(handler)
		if s.answer != nil {
			next = s.answer
		}
		s.mu.Unlock()
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	s.url = web.URL
	return s
}

func (s *server) client(t *testing.T) *Client {
	t.Helper()
	c, err := New(Config{Server: s.url})
	require.NoError(t, err)
	c.strict = true
	return c
}

// operation is an operation of the document, with the names of its query parameters.
type operation struct {
	ID         string `json:"operationId"`
	Parameters []struct{ Name, In string }
	method     string
	path       string
}

// operations returns those of the served document.
func (s *server) operations(t *testing.T) map[string]operation {
	t.Helper()
	response, err := http.Get(s.url + "/api/v1/openapi.json")
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	var document struct {
		Paths map[string]map[string]operation
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&document))
	all := map[string]operation{}
	for path, methods := range document.Paths {
		for method, op := range methods {
			op.method, op.path = strings.ToUpper(method), path
			all[op.ID] = op
		}
	}
	return all
}

// methodOf returns the name of an operation's method: ListEntries for list-entries.
func methodOf(id string) string {
	var name strings.Builder
	for word := range strings.SplitSeq(id, "-") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// Every operation of the document has a method of its name, or is exempt; and no exemption outlives its operation.
func TestContract_EveryOperationHasAMethod(t *testing.T) {
	t.Parallel()
	all := newServer(t).operations(t)
	client := reflect.TypeFor[*Client]()
	for id := range all {
		_, there := client.MethodByName(methodOf(id))
		_, without := exempt[id]
		require.NotEqual(t, there, without, "%s: a method %s, or an exemption with its reason, and not both", id,
			methodOf(id))
	}
	for id := range exempt {
		require.Contains(t, all, id)
	}
}

// contractCall is a call of a method, and the operation that it has to request.
type contractCall struct {
	id string
	do func() (any, error)
}

// contractCalls makes calls with every parameter.
type contractCalls struct {
	c    *Client
	ctx  context.Context //nolint:containedctx // of the test
	by   By
	now  time.Time
	page wire.Page
}

func (k *contractCalls) entries() []contractCall {
	c, ctx, by, now, page, two := k.c, k.ctx, k.by, k.now, k.page, 2
	filter := wire.Filter{
		IDs: []int64{1, 2}, Statuses: []wire.Status{"PENDING", "PARKED"}, Topic: "x", Consumer: "x", EventType: "x",
		Handler: "x", Reason: "exhausted", ErrorClass: "x", ErrorCode: "x", Fingerprint: "x", EventID: "x",
		SourceTable: "x", SourceID: "x", CorrelationID: "x", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", ErrorText: "x",
		PayloadText:   "x",
		PayloadFields: []wire.PayloadField{{Path: []string{"a"}, Value: "1"}, {Path: []string{"b"}, Value: "2,3"}},
		CauseText:     "x", From: now.Add(-time.Hour), To: now, ResolvedBefore: now, DiedBefore: now, Redrives: &two,
		Run: "x",
	}
	edit := wire.Edit{SetHeaders: map[string]string{"tenant": "acme"}}
	var exported bytes.Buffer
	return []contractCall{
		{"list-entries", func() (any, error) { return c.ListEntries(ctx, filter, page) }},
		{"list-entries", func() (any, error) { return c.ListEntries(ctx, wire.Filter{}, page) }},
		{"count-entries", func() (any, error) { return c.CountEntries(ctx, filter, 10) }},
		{"get-entry", func() (any, error) { return c.GetEntry(ctx, 1, 0) }},
		{"get-payload", func() (any, error) { return c.GetPayload(ctx, 1) }},
		{"get-revision", func() (any, error) { return c.GetRevision(ctx, 1, 0) }},
		{"diff-revisions", func() (any, error) { return c.DiffRevisions(ctx, 1, 0, 0) }},
		{"preview-edit", func() (any, error) { return c.PreviewEdit(ctx, 2, edit) }},
		{"edit-entry", func() (any, error) { return c.EditEntry(ctx, 2, edit, false, by) }},
		{"park-entry", func() (any, error) { return c.ParkEntry(ctx, 2, by) }},
		{"restore-entry", func() (any, error) { return c.RestoreEntry(ctx, 2, by) }},
		{"redrive-entry", func() (any, error) { return c.RedriveEntry(ctx, 2, by) }},
		{"release-entry", func() (any, error) { return c.ReleaseEntry(ctx, 2, By{Note: "no reader"}) }},
		{"resolve-entry", func() (any, error) { return c.ResolveEntry(ctx, 3, by) }},
		{"discard-entry", func() (any, error) { return c.DiscardEntry(ctx, 4, by) }},
		{"get-entry-audit", func() (any, error) { return c.GetEntryAudit(ctx, 2) }},
		{"change-entries", func() (any, error) { return c.ChangeEntries(ctx, "park", wire.Filter{IDs: []int64{1, 2}}, by) }},
		{"export-entries", func() (any, error) {
			from, err := c.ExportEntries(ctx, wire.Filter{})
			if err != nil {
				return nil, err
			}
			return io.Copy(&exported, from)
		}},
		{"export-entries", func() (any, error) { return c.ExportEntries(ctx, filter) }},
		{"import-entries", func() (any, error) { return c.ImportEntries(ctx, bytes.NewReader(exported.Bytes()), by) }},
	}
}

func (k *contractCalls) causes(fingerprint string) []contractCall {
	c, ctx, by, now, page := k.c, k.ctx, k.by, k.now, k.page
	return []contractCall{
		{"list-groups", func() (any, error) {
			return c.ListGroups(ctx, wire.GroupQuery{
				Status: "PENDING", Handler: "pay", ErrorClass: "*bank.Error", CauseText: "bank", Fingerprint: "x",
				TrendSince: now.Add(-time.Hour), Limit: 3,
			})
		}},
		{"list-groups", func() (any, error) { return c.ListGroups(ctx, wire.GroupQuery{TrendSince: now.Add(-time.Hour)}) }},
		{"get-stats", func() (any, error) {
			return c.GetStats(ctx, wire.StatsQuery{Since: now.Add(-time.Hour), TopCauses: 3})
		}},
		{"list-audit", func() (any, error) {
			return c.ListAudit(ctx, wire.AuditQuery{Fold: true, AuditFilter: wire.AuditFilter{
				EntryID: 1, Run: "run-1", Actor: "ana", Action: "edit", From: now.Add(-time.Hour), To: now,
			}}, page)
		}},
		{"list-audit", func() (any, error) { return c.ListAudit(ctx, wire.AuditQuery{}, wire.Page{}) }},
		{"mute-group", func() (any, error) { return c.MuteGroup(ctx, fingerprint, time.Hour, by) }},
		{"list-mutes", func() (any, error) { return c.ListMutes(ctx) }},
		{"unmute-group", func() (any, error) { return c.UnmuteGroup(ctx, fingerprint, by) }},
		{"get-report", func() (any, error) { return c.GetReport(ctx, 24) }},
	}
}

func (k *contractCalls) runs() []contractCall {
	c, ctx, by, page, two := k.c, k.ctx, k.by, k.page, 2
	spec := wire.RunSpec{ID: "run-1", Filter: wire.Filter{Topic: "orders"}, JQ: ".x = 1"}
	return []contractCall{
		{"preview-run", func() (any, error) { return c.PreviewRun(ctx, spec, 3) }},
		{"start-run", func() (any, error) {
			return c.StartRun(ctx, wire.RunSpec{ID: "run-0", Paused: true, Filter: wire.Filter{IDs: []int64{5}}}, by)
		}},
		{"resume-run", func() (any, error) { return c.ResumeRun(ctx, "run-0", by) }},
		{"pause-run", func() (any, error) { return c.PauseRun(ctx, "run-0", by) }},
		{"adjust-run", func() (any, error) { return c.AdjustRun(ctx, "run-0", wire.RunAdjustment{MaxOut: &two}, by) }},
		{"cancel-run", func() (any, error) { return c.CancelRun(ctx, "run-0", by) }},
		{"get-run", func() (any, error) { return c.GetRun(ctx, "run-0") }},
		{"list-runs", func() (any, error) {
			return c.ListRuns(ctx, wire.RunFilter{States: []wire.RunState{"cancelled", "paused"}, CreatedBy: "ana", Active: true}, page)
		}},
		{"list-runs", func() (any, error) { return c.ListRuns(ctx, wire.RunFilter{}, wire.Page{}) }},
		{"list-run-items", func() (any, error) {
			return c.ListRunItems(ctx, "run-0", wire.ItemFilter{State: "waiting", After: 1, Limit: 5})
		}},
		{"list-run-items", func() (any, error) { return c.ListRunItems(ctx, "run-0", wire.ItemFilter{}) }},
		{"review-run", func() (any, error) { return c.ReviewRun(ctx, "run-0", wire.ReviewQuery{Sample: 3}) }},
		{"watch-run", func() (any, error) {
			var last *wire.Run
			for run, err := range c.WatchRun(ctx, "run-0") {
				if last = run; err != nil {
					return nil, err
				}
			}
			return last, nil
		}},
		{"approve-run", func() (any, error) { return c.ApproveRun(ctx, "run-0", by) }},
		{"reject-run", func() (any, error) { return c.RejectRun(ctx, "run-0", by) }},
	}
}

func (k *contractCalls) server() []contractCall {
	c, ctx, by, now := k.c, k.ctx, k.by, k.now
	return []contractCall{
		{"preview-purge", func() (any, error) {
			return c.PreviewPurge(ctx, wire.PurgeScope{ClosedBefore: now.Add(time.Hour)})
		}},
		{"purge-entries", func() (any, error) {
			return c.PurgeEntries(ctx, wire.PurgeScope{ClosedBefore: now.Add(time.Hour)}, false, by)
		}},
		{"restore-archived", func() (any, error) { return c.RestoreArchived(ctx, []int64{3}, by) }},
		{"get-retention", func() (any, error) { return c.GetRetention(ctx) }},
		{"get-me", func() (any, error) { return c.GetMe(ctx) }},
		{"get-health", func() (any, error) { return c.GetHealth(ctx) }},
		{"list-rules", func() (any, error) { return c.ListRules(ctx) }},
		{"get-topology", func() (any, error) { return c.GetTopology(ctx) }},
		{"get-settings", func() (any, error) { return c.GetSettings(ctx) }},
	}
}

// Each method is called against the server: it requests its own operation, with all parameters of the document, and the
// server's answer has no field that package wire does not know.
func TestContract_EveryMethod(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.client(t)
	groups, err := c.ListGroups(t.Context(), wire.GroupQuery{})
	require.NoError(t, err)
	k := &contractCalls{
		c: c, ctx: t.Context(), by: By{Note: "contract", Actor: "ana"}, now: time.Now(),
		page: wire.Page{Limit: 2, Order: "oldest"},
	}
	sent := map[string][]*http.Request{}
	for _, call := range slices.Concat(k.entries(), k.causes(groups.Groups[0].Fingerprint), k.runs(), k.server()) {
		s.mu.Lock()
		s.asked = nil
		s.mu.Unlock()
		answer, err := call.do()
		if refused, ok := errors.AsType[*Error](err); ok {
			require.True(t, refused.Ours(), "%s: %v", call.id, err)
			require.Contains(t, []string{"approve-run", "reject-run"}, call.id, "%v", err) // of a run that is over
		} else {
			require.NoError(t, err, call.id)
			require.NotNil(t, answer, call.id)
		}
		s.mu.Lock()
		sent[call.id] = append(sent[call.id], s.asked[0])
		s.mu.Unlock()
	}
	for id, op := range s.operations(t) {
		if exempt[id] == "" {
			op.requireRequested(t, id, sent[id])
		}
	}
}

// requireRequested checks the requests of an operation: their method, path, and that all parameters were sent.
func (op *operation) requireRequested(t *testing.T, id string, sent []*http.Request) {
	t.Helper()
	require.NotEmpty(t, sent, "%s is not called here", id)
	may, did := map[string]bool{}, map[string]bool{}
	for _, p := range op.Parameters {
		if p.In == "query" && p.Name != "cursor" {
			may[p.Name] = true
		}
	}
	for _, r := range sent {
		require.Equal(t, op.method, r.Method, id)
		path := strings.NewReplacer("{id}", "[^/]+", "{revision}", "[^/]+", "{fingerprint}", "[^/]+").Replace(op.path)
		require.Regexp(t, "^/api/v1"+path+"$", r.URL.Path, id)
		for name := range r.URL.Query() {
			did[name] = true
		}
	}
	if id == "diff-revisions" {
		did["from"] = true // 0 is the default
	}
	require.Equal(t, slices.Sorted(maps.Keys(may)), slices.Sorted(maps.Keys(did)),
		"%s: the parameters of the document, and those of the client", id)
}

// Bytes that are not text are returned unchanged.
func TestContract_Bytes(t *testing.T) {
	t.Parallel()
	c := newServer(t).client(t)
	e, err := c.GetEntry(t.Context(), 1, 0)
	require.NoError(t, err)
	require.Equal(t, []byte("\xff\x00"), e.Body.Bytes())
	require.Equal(t, wire.Text("a\xffb"), e.RoutingKey)
	require.Equal(t, "\xff", e.Body.Headers["bytes"])
	require.Equal(t, "name", e.Body.Headers["\xfe"])
	payload, err := c.GetPayload(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, e.Body.Bytes(), payload)
	same, err := c.GetEntry(t.Context(), 1, e.Version)
	require.NoError(t, err)
	require.Nil(t, same, "304: what the caller has is the latest")
	n := 0
	for entry, err := range c.Entries(t.Context(), wire.Filter{}, wire.Page{Limit: 2}) {
		require.NoError(t, err)
		require.NotZero(t, entry.ID)
		n++
	}
	require.Equal(t, 5, n, "over three pages")
}

// A change whose answer was lost is not made twice; a request that is not safe to repeat is sent once; after a final
// answer there is no further try.
func TestRetries(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.client(t)
	var mu sync.Mutex // guards the three
	tries, status, header := 0, 0, http.Header{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 1 {
			if status == 0 {
				panic(http.ErrAbortHandler) // the connection breaks
			}
			maps.Copy(w.Header(), header)
			w.WriteHeader(status)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{}`))
	})
	s.answer = handler
	read := func() error { _, err := c.GetMe(t.Context()); return err }
	change := func() error { _, err := c.ParkEntry(t.Context(), 1, By{}); return err }
	load := func() error { _, err := c.ImportEntries(t.Context(), strings.NewReader("{}"), By{}); return err }
	for name, test := range map[string]struct {
		do     func() error
		status int
		after  string
		tries  int
	}{
		"reading, broken":         {read, 0, "", 2},
		"a change, broken":        {change, 0, "", 2},
		"an import, broken":       {load, 0, "", 1},
		"reading, unavailable":    {read, 503, "0", 2},
		"reading, a bad gateway":  {read, 502, "", 2},
		"a change, unavailable":   {change, 503, "0", 1},
		"a change, too many":      {change, 429, "0", 2},
		"a change, still going":   {change, 409, "0", 2},
		"a change, came second":   {change, 409, "", 1},
		"reading, not there":      {read, 404, "", 1},
		"reading, in a long time": {read, 503, "3600", 1},
	} {
		mu.Lock()
		tries, status, header = 0, test.status, http.Header{}
		if test.after != "" {
			header.Set("Retry-After", test.after)
		}
		mu.Unlock()
		s.mu.Lock()
		s.asked = nil
		s.mu.Unlock()
		err := test.do()
		mu.Lock()
		made := tries
		mu.Unlock()
		require.Equal(t, test.tries, made, name)
		require.Equal(t, test.tries == 2, err == nil, "%s: %v", name, err)
		if test.tries == 2 && s.asked[0].Method == http.MethodPost {
			require.NotEmpty(t, s.asked[0].Header.Get("Idempotency-Key"), name)
			require.Equal(t, s.asked[0].Header.Get("Idempotency-Key"), s.asked[1].Header.Get("Idempotency-Key"), name)
		}
		if status != 0 && test.tries == 1 {
			var refused *Error
			require.ErrorAs(t, err, &refused, name)
			require.Equal(t, status, refused.Status, name)
		}
	}
}

// The answer of a proxy in front of the server, such as its login page, is an error and not an empty export.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := s.client(t)
	status := 0
	s.answer = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Location", "/login")
		w.WriteHeader(status)
		_, _ = w.Write([]byte("<html>"))
	})
	for name, do := range map[string]func() error{
		"json":    func() error { _, err := c.GetMe(t.Context()); return err },
		"change":  func() error { _, err := c.ParkEntry(t.Context(), 1, By{}); return err },
		"export":  func() error { _, err := c.ExportEntries(t.Context(), wire.Filter{}); return err },
		"payload": func() error { _, err := c.GetPayload(t.Context(), 1); return err },
		"watch": func() error {
			for _, err := range c.WatchRun(t.Context(), "a") {
				return err
			}
			return nil
		},
	} {
		status = http.StatusOK
		require.ErrorContains(t, do(), "is the URL that of a redrive server?", name)
		status = http.StatusFound
		require.EqualError(t, do(), "the server answered 302 Found", name)
	}
}

// Answers of servers of version 1.0 are understood.
func TestReadsVersion10(t *testing.T) {
	t.Parallel()
	for name, into := range map[string]any{
		"entry": &wire.EntryDetail{}, "entry-text": &wire.EntryDetail{}, "entries": &wire.EntryList{}, "run": &wire.Run{},
		"stats":  &wire.Stats{},
		"groups": &wire.GroupList{}, "audit": &wire.AuditList{}, "diff": &wire.Diff{}, "report": &wire.Recurrence{},
		"problem": &wire.Problem{},
	} {
		data, err := os.ReadFile(filepath.Join("testdata", "1.0", name+".json"))
		require.NoError(t, err)
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(into), name)
		again, err := json.Marshal(into)
		require.NoError(t, err)
		require.JSONEq(t, string(data), string(again), name)
	}
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	for _, server := range []string{"", "ops.example", "ftp://ops.example", "https://ana:secret@ops.example", "https://"} {
		_, err := New(Config{Server: server})
		require.Error(t, err, server)
		require.NotContains(t, err.Error(), "secret")
	}
}
