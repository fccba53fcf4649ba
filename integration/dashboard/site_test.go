package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

// site is a whole system: a memory broker, a consumer with the retry pipeline, dead letters in SQLite, and the
// dashboard.
type site struct {
	letters *dlq.Letters
	broker  *memory.Broker
	monitor *live.Monitor
	manager *dlq.Manager
	runner  *redrive.Runner
	url     string

	mu sync.Mutex
	// away cuts every connection to the dashboard; refuses is the broker's error for a redrive of one entry.
	away    atomic.Bool
	refuses atomic.Pointer[error]
	// first gets every request before the dashboard does. It may delay the request, or answer it and return true.
	first atomic.Pointer[func(*http.Request) bool]
	// broken fails the consumer's messages, and may block; nil fails none.
	broken func(*message.Message) error
	seen   []string
	mails  int
	// release lets slow mails end.
	release chan struct{}
}

const topic = "orders"

func newSite(t testing.TB, edits ...func(*dlqhttp.Config)) *site {
	t.Helper()
	return newSiteOver(t, func(s dlq.Store) dlq.Store { return s }, edits...)
}

// newSiteOver returns a site whose dashboard uses the store through a wrapper.
func newSiteOver(t testing.TB, wrap func(dlq.Store) dlq.Store, edits ...func(*dlqhttp.Config)) *site {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal",
		dlq.WithLogger(quiet), dlq.WithoutSpool())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	broker, err := memory.New(brokers.Config{Group: "billing", Concurrency: 16, Logger: quiet})
	require.NoError(t, err)
	s := &site{letters: letters, broker: broker, release: make(chan struct{})}
	redriver := dlq.RedriverFunc(func(ctx context.Context, o envelope.Origin, m *message.Message,
		delay time.Duration,
	) error {
		if refusal := s.refuses.Load(); refusal != nil {
			return *refusal
		}
		return broker.Reschedule(ctx, o, m, delay)
	})
	s.manager, err = dlq.NewManager(dlq.ManagerConfig{Store: wrap(letters.Store()), Redriver: redriver, Logger: quiet})
	require.NoError(t, err)
	limited, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: broker, Logger: quiet, Approval: &dlq.Approval{Above: 1000},
	})
	require.NoError(t, err)
	s.runner, err = redrive.NewRunner(limited, redrive.Config{
		WorkInterval: 20 * time.Millisecond,
		Targets:      map[string]envelope.Origin{"quarantine": {Topic: "quarantine", Consumer: "quarantine"}},
	})
	require.NoError(t, err)
	s.consume(t, broker, quiet)

	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	worked := make(chan error, 1)
	go func() { worked <- s.runner.Work(ctx) }()
	t.Cleanup(func() {
		stop()
		require.ErrorIs(t, <-worked, context.Canceled)
	})

	cfg := dlqhttp.Config{
		Manager: s.manager, Runner: s.runner, Prefix: "/ops", Logger: quiet, Limits: dlqhttp.Limits{Rate: -1},
		Auth: []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(testUser)},
		Topology: func(context.Context) (any, error) {
			return map[string]any{"broker": "mem://", "queues": []any{
				map[string]any{"name": "orders.billing", "type": "queue", "messages": 0},
				map[string]any{"name": "orders.billing_retry", "type": "retry", "messages": 0},
			}}, nil
		},
		Depths: func(ctx context.Context) ([]dlqhttp.Depth, error) {
			depths, err := broker.Depths(ctx)
			found := make([]dlqhttp.Depth, 0, len(depths))
			for _, d := range depths {
				found = append(found, dlqhttp.Depth{
					Broker: "mem", Topic: d.Topic, Group: d.Group, Kind: string(d.Kind),
					Messages: d.Messages,
				})
			}
			return found, err
		},
		Settings: map[string]any{
			"server": map[string]any{"address": "127.0.0.1:8321", "read_only": false},
			"store":  "sqlite:dead-letters.db",
		},
		Rules: []redrive.Rule{{
			Name: "network", CauseText: "connection refused", After: time.Minute, MaxAfter: time.Hour,
			Redrives: 3, Rate: 10,
		}},
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	handler, err := dlqhttp.New(cfg)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.away.Load() {
			panic(http.ErrAbortHandler)
		}
		if first := s.first.Load(); first != nil && (*first)(r) {
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + cfg.Prefix
	return s
}

// testUser trusts the test's browser: "name:role".
func testUser(r *http.Request) (dlqhttp.Principal, error) {
	name, role, ok := strings.Cut(r.Header.Get("X-Test-User"), ":")
	if !ok {
		return dlqhttp.Principal{}, dlqhttp.ErrNoCredentials
	}
	parsed, err := dlqhttp.ParseRole(role)
	return dlqhttp.Principal{Name: name, Role: parsed}, err
}

func (s *site) consume(t testing.TB, broker *memory.Broker, quiet *slog.Logger) {
	t.Helper()
	monitor, err := live.New(live.Config{
		Service: "billing", Store: s.letters.Store(), Interval: 50 * time.Millisecond,
		Logger: quiet,
	})
	require.NoError(t, err)
	s.monitor = monitor
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: s.letters, Logger: quiet, MaxAttempts: 1, Observer: monitor,
		Handlers: map[string]middleware.HandlerConfig{"mail": {MaxAttempts: 2, Backoff: middleware.Steps(20 * time.Minute)}},
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("charge", topic, monitor.Subscriber(broker.Subscriber()), s.handle)
	router.AddConsumerHandler("mail", "mails", monitor.Subscriber(broker.Subscriber()), s.mail)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := await.Run(ctx, t, router)
	reported := make(chan error, 1)
	go func() { reported <- monitor.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-reported)
		require.NoError(t, <-done)
		require.NoError(t, broker.Close())
	})
}

func (s *site) handle(m *message.Message) error {
	s.mu.Lock()
	s.seen = append(s.seen, string(m.Payload))
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken(m) // it may block
	}
	return nil
}

// mail handles another queue: the message "fail" is retried in 20 minutes, and "slow" blocks until the test releases
// it.
func (s *site) mail(m *message.Message) error {
	switch string(m.Payload) {
	case "fail":
		return errors.New("smtp: 451 try again later")
	case "slow":
		<-s.release
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mails++
	return nil
}

// mailed returns how many mails were handled.
func (s *site) mailed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mails
}

// publish publishes messages to a topic.
func (s *site) publish(t testing.TB, topic string, payloads ...string) {
	t.Helper()
	for _, payload := range payloads {
		require.NoError(t, s.broker.Publisher().Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(payload))))
	}
}

// handled returns the payloads that the consumer has received.
func (s *site) handled() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

var errStillBroken = errors.New("bank: still closed")

// breaks makes the consumer return the function's errors.
func (s *site) breaks(on func(*message.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = on
}

// letter returns the n-th dead letter, with one of a few causes.
func letter(n int, at time.Time, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	causes := []struct {
		class, text, trace string
		reason             envelope.Reason
	}{
		{
			"*bank.Error", fmt.Sprintf("bank: connection refused after %d ms", 900+n),
			"bank.(*Client).Charge\n\tbank/client.go:118\nmain.charge\n\tcmd/billing/charge.go:42", envelope.ReasonExhausted,
		},
		{
			"*bank.Error", fmt.Sprintf("bank: connection refused after %d ms", 700+n),
			"bank.(*Client).Charge\n\tbank/client.go:118\nmain.charge\n\tcmd/billing/charge.go:42", envelope.ReasonExhausted,
		},
		{"*validate.Error", fmt.Sprintf("order %d: the customer has no card", n), "", envelope.ReasonPermanent},
		{"*json.SyntaxError", "unexpected end of JSON input", "", envelope.ReasonMalformed},
		{
			"runtime.Error", fmt.Sprintf("index out of range [%d] with length 3", n),
			"panic: index out of range\nmain.total\n\tcmd/billing/total.go:17", envelope.ReasonPanic,
		},
	}
	c := causes[(n*n+n/3)%len(causes)]
	m := message.NewMessage(fmt.Sprintf("5f0c9c1e-0000-4000-8000-%012d", n), fmt.Appendf(nil,
		`{"order":%d,"customer":{"id":"c-%d","name":"Ana `+
			`Silva","vip":%t},"items":[{"sku":"A-%d","quantity":%d}],"total":%d.50,"currency":null}`,
		n, n%97, n%5 == 0, n%13, n%4+1, 20+n%80))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID: fmt.Sprintf("order-%06d", n), envelope.KeyCorrelationID: fmt.Sprintf("checkout-%d", n/3),
		envelope.KeyContentType: "application/json",
		"tenant":                "acme", envelope.KeyTraceParent: fmt.Sprintf(
			"00-4bf92f3577b34da6a3ce%012d-00f067aa0ba902b7-01", n),
		"source_table": "orders", "source_id": strconv.Itoa(n),
	}
	d := &envelope.DeadLetter{
		Message: m, Reason: c.reason, Class: c.class, Handler: "charge", Err: envelope.Error{Message: c.text, Trace: c.trace},
		Attempts:     4,
		Origin:       envelope.Origin{Broker: "mem", Topic: topic, Consumer: "billing", RoutingKey: topic},
		FirstFailure: at.Add(-70 * time.Second), At: at,
	}
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

// put stores n dead letters, the newest from a minute ago and each other one a minute older, and returns their ids.
func (s *site) put(t testing.TB, n int, edits ...func(*envelope.DeadLetter)) []int64 {
	t.Helper()
	now := time.Now()
	batch := make([]*dlq.Entry, n)
	for i := range batch {
		batch[i] = letter(i, now.Add(-time.Duration(i+1)*time.Minute), edits...)
	}
	receipts, err := s.letters.Store().Put(t.Context(), batch...)
	require.NoError(t, err)
	ids := make([]int64, n)
	for i, r := range receipts {
		ids[i] = r.ID
	}
	return ids
}

// cause gives dead letters the same cause.
func cause(text string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) {
		d.Err.Message, d.Class, d.Reason = text, "*bank.Error", envelope.ReasonExhausted
	}
}

// messageIDs gives letters different ids from other letters with the same numbers.
func messageIDs(prefix string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) {
		d.Message.UUID = prefix + d.Message.UUID
		d.Message.Metadata[envelope.KeyMessageID] = prefix + d.Message.Metadata[envelope.KeyMessageID]
	}
}

// entry returns an entry from the store.
func (s *site) entry(t testing.TB, id int64) *dlq.Entry {
	t.Helper()
	e, err := s.manager.Get(t.Context(), id)
	require.NoError(t, err)
	return e
}

// becomes waits until an entry has a status.
func (s *site) becomes(t testing.TB, id int64, status dlq.Status) *dlq.Entry {
	t.Helper()
	await.True(t, func() bool { return s.entry(t, id).Status == status }, "entry %d: %s", id, status)
	return s.entry(t, id)
}

// last returns the last audit record of an entry.
func (s *site) last(t testing.TB, id int64) driver.AuditRecord {
	t.Helper()
	records, err := s.manager.Audit(t.Context(), id)
	require.NoError(t, err)
	require.NotEmpty(t, records)
	return records[len(records)-1]
}
