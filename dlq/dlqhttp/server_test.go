package dlqhttp_test

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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// server is a handler on a real listener, with its own store and a broker that accepts everything.
type server struct {
	handler *dlqhttp.Handler
	manager *dlq.Manager
	runner  *redrive.Runner
	letters *dlq.Letters
	url     string
	cfg     dlqhttp.Config
	sent    *outbox
	log     *logbuffer.Buffer
}

// outbox keeps the redriven messages.
type outbox struct {
	mu       sync.Mutex
	messages []*message.Message
	fail     error
	hold     func() // called once, before the next message is taken
}

var errBroker = errors.New("broker: connection refused")

func (o *outbox) Reschedule(_ context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
	o.mu.Lock()
	hold := o.hold
	o.hold = nil
	o.mu.Unlock()
	if hold != nil {
		hold()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return o.fail
	}
	o.messages = append(o.messages, m.Copy())
	return nil
}

func (o *outbox) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.messages)
}

// Tokens of the tests, one for each role.
var tokens = map[string]string{
	"metrics": "metrics-token",
	"viewer":  "viewer-token", "operator": "operator-token", "approver": "approver-token", "admin": "admin-token",
	"ana": "ana-token", "bo": "bo-token",
}

func bearer(t *testing.T) []dlqhttp.Authenticator {
	t.Helper()
	var list []dlqhttp.Token
	for name, token := range tokens {
		role := dlqhttp.Operator
		if parsed, err := dlqhttp.ParseRole(name); err == nil {
			role = parsed
		}
		list = append(list, dlqhttp.Token{Name: name, Role: role, SHA256: dlqhttp.HashToken(token)})
	}
	auth, err := dlqhttp.Bearer(list...)
	require.NoError(t, err)
	return []dlqhttp.Authenticator{auth}
}

// newServer starts a server; change modifies its configuration.
func newServer(t *testing.T, change ...func(*dlqhttp.Config)) *server {
	t.Helper()
	return newServerWith(t, nil, change...)
}

func newServerWith(t *testing.T, approval *dlq.Approval, change ...func(*dlqhttp.Config)) *server {
	t.Helper()
	return newConfigured(t, approval, change...).restarted(t)
}

// newConfigured returns a server that does not listen yet.
func newConfigured(t *testing.T, approval *dlq.Approval, change ...func(*dlqhttp.Config)) *server {
	t.Helper()
	s := &server{sent: &outbox{}, log: &logbuffer.Buffer{}}
	logger := slog.New(slog.NewTextHandler(s.log, nil))
	letters, err := dlq.Open(t.Context(), "sqlite:"+storetest.File(t)+"?synchronous=normal", dlq.WithoutSpool(),
		dlq.WithLogger(logger))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	s.letters, s.manager = letters, letters.Manager(s.sent)
	runs, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: s.sent, Logger: logger, Approval: approval,
	})
	require.NoError(t, err)
	s.runner, err = redrive.NewRunner(runs, redrive.Config{})
	require.NoError(t, err)
	cfg := dlqhttp.Config{Manager: s.manager, Runner: s.runner, Logger: logger, Limits: dlqhttp.Limits{Rate: -1}}
	for _, c := range change {
		c(&cfg)
	}
	s.cfg = cfg
	return s
}

// restarted returns another server with the same configuration and store.
func (s *server) restarted(t *testing.T) *server {
	t.Helper()
	other := *s
	var err error
	other.handler, err = dlqhttp.New(s.cfg)
	require.NoError(t, err)
	web := httptest.NewServer(other.handler)
	t.Cleanup(web.Close)
	other.url = web.URL + s.cfg.Prefix
	return &other
}

// seed stores n dead letters: even ones of a bank that is down, odd ones of orders without a customer.
func (s *server) seed(t *testing.T, n int) {
	t.Helper()
	died := time.Date(2025, 11, 20, 7, 30, 0, 0, time.UTC)
	letters := make([]*dlq.Entry, 0, n)
	for i := 1; i <= n; i++ {
		m := message.NewMessage(fmt.Sprintf("message-%d", i),
			fmt.Appendf(nil, `{"order":%d,"customer":{"cpf":"111.222.333-44"},"total":%d.50}`, i, i))
		m.Metadata = message.Metadata{
			envelope.KeyMessageID: m.UUID, envelope.KeyEvent: "order.placed", "tenant": "acme",
			"authorization": "secret",
		}
		d := envelope.DeadLetter{
			Message: m, Err: envelope.Error{Message: fmt.Sprintf("bank: timeout after %ds", i), Code: "504"},
			Reason:   envelope.ReasonExhausted,
			Attempts: 4, Class: "*bank.Error", Handler: "pay",
			Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
			At:     died.Add(time.Duration(i) * time.Minute), FirstFailure: died,
		}
		if i%2 == 1 {
			d.Err = envelope.Error{Message: fmt.Sprintf("order %d has no customer with CPF 111.222.333-44", i), Code: "422"}
			d.Reason, d.Attempts = envelope.ReasonPermanent, 1
		}
		letters = append(letters, dlq.NewEntry(&d))
	}
	_, err := s.letters.Store().Put(t.Context(), letters...)
	require.NoError(t, err)
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// json reads the body.
func (a *answer) json(t *testing.T, into any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(a.body), into), a.body)
}

// at returns a value in the body by its path: "conflict.by".
func (a *answer) at(t *testing.T, path string) any {
	t.Helper()
	var value any
	a.json(t, &value)
	for name := range strings.SplitSeq(path, ".") {
		object, ok := value.(map[string]any)
		require.True(t, ok, "%s in %s", path, a.body)
		value = object[name]
	}
	return value
}

// ask sends a request. header has pairs of names and values; a body that is text is sent as it is.
func (s *server) ask(t *testing.T, method, path, body string, header ...string) *answer {
	t.Helper()
	return s.send(t, method, path, strings.NewReader(body), header...)
}

func (s *server) send(t *testing.T, method, path string, body io.Reader, header ...string) *answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, body)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	data, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return &answer{response.StatusCode, maps.Clone(response.Header), string(data)}
}

// as is the header with a user's token.
func as(name string) []string { return []string{"Authorization", "Bearer " + tokens[name]} }

// dump returns everything in the store, to check that nothing has changed.
func (s *server) dump(t *testing.T) string {
	t.Helper()
	var out bytes.Buffer
	_, err := s.manager.Export(t.Context(), &out, dlq.Filter{})
	require.NoError(t, err)
	records, _, err := s.manager.AuditLog(t.Context(), dlq.AuditFilter{}, dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	runs, _, err := s.runner.Runs(t.Context(), redrive.RunFilter{}, dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	fmt.Fprintf(&out, "%+v\n%+v\n%d sent", records, runs, s.sent.count())
	return out.String()
}
