package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

var errAway = errors.New("the database is down")

// unclosed is a store that its test inspects at the end, and then closes.
type unclosed struct{ *sqlstore.Store }

func (unclosed) Close() error { return nil }

func newStore(t testing.TB) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), "sqlite:"+storetest.File(t)+"?synchronous=normal")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newLetters(t *testing.T, s dlq.Store, dir string, opts ...dlq.Option) (*dlq.Letters, *logbuffer.Buffer) {
	t.Helper()
	logs := &logbuffer.Buffer{}
	l, err := dlq.NewLetters(s, append([]dlq.Option{
		dlq.WithSpool(dir), dlq.WithImportBackoff(2*time.Millisecond, 10*time.Millisecond),
		dlq.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, logs
}

func death(n int) *envelope.DeadLetter {
	m := message.NewMessage(fmt.Sprintf("uuid-%d", n), fmt.Appendf(nil, `{"n":%d}`, n))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("message-%d", n)
	m.Metadata[envelope.KeyRetryCount] = "3"
	m.Metadata["tenant"] = "acme"
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted,
		Err:   envelope.Error{Message: fmt.Sprintf("order %d: timeout", n), Code: "504"},
		Class: "*main.Timeout", Handler: "charge",
		Origin:   envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
		Attempts: 4, At: time.Now(),
	}
}

func count(t *testing.T, s dlq.Store, f dlq.Filter) int64 {
	t.Helper()
	n, err := s.Count(t.Context(), f, 0)
	require.NoError(t, err)
	return n
}

func stored(t *testing.T, s dlq.Store, d *envelope.DeadLetter) int64 {
	t.Helper()
	receipts, err := s.Put(t.Context(), dlq.NewEntry(d))
	require.NoError(t, err)
	return receipts[0].ID
}

var ana = dlq.By{Actor: "ana", Note: "the bank is back"}

// consumer is a Redriver with the consumer behind it: each message is handled at once, and the outcome reported as the
// retry pipeline does. fail reports whether the handler fails on a message; hold keeps outcomes back until it is
// called.
type consumer struct {
	letters *dlq.Letters
	fail    func(m *message.Message) bool
	refuse  func(m *message.Message) error
	silent  bool // reports no outcome

	mu    sync.Mutex
	count map[string]int // deliveries by message id
	to    map[string]envelope.Origin
	sent  []*message.Message
	at    []time.Time
}

func (c *consumer) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, _ time.Duration) error {
	if c.refuse != nil {
		if err := c.refuse(m); err != nil {
			return err
		}
	}
	id := m.Metadata[envelope.KeyMessageID]
	c.mu.Lock()
	if c.count == nil {
		c.count, c.to = map[string]int{}, map[string]envelope.Origin{}
	}
	c.count[id]++
	c.to[id] = origin
	c.sent = append(c.sent, m)
	c.at = append(c.at, time.Now())
	c.mu.Unlock()
	if c.silent {
		return nil
	}
	return c.outcome(ctx, origin, m)
}

func (c *consumer) outcome(ctx context.Context, origin envelope.Origin, m *message.Message) error {
	if c.fail != nil && c.fail(m) {
		d := death(0)
		d.Message, d.Origin, d.At = m, origin, time.Now()
		d.Err.Message = "still closed"
		return c.letters.DeadLetter(ctx, d)
	}
	return c.letters.Redriven(ctx, envelope.RedrivenBy(m, origin, time.Now()))
}

func (c *consumer) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent)
}

// operator has everything that an operator works with.
type operator struct {
	*dlq.Manager
	*redrive.Runner
}

// operate returns the operator of a store.
func operate(t testing.TB, store dlq.Store, r dlq.Redriver, cfg ...redrive.Config) operator {
	t.Helper()
	return operateBy(t, dlq.ManagerConfig{Store: store, Redriver: r}, cfg...)
}

func operateBy(t testing.TB, shared dlq.ManagerConfig, cfg ...redrive.Config) operator {
	t.Helper()
	m, err := dlq.NewManager(shared)
	require.NoError(t, err)
	runner, err := redrive.NewRunner(m, append(cfg, redrive.Config{})[0])
	require.NoError(t, err)
	return operator{m, runner}
}

// operated is a store with dead letters, and an operator whose messages a consumer handles.
func operated(t *testing.T, letters int, c *consumer, cfg ...redrive.Config) (operator, *sqlstore.Store) {
	t.Helper()
	store := newStore(t)
	c.letters, _ = newLetters(t, unclosed{store}, t.TempDir())
	entries := make([]*dlq.Entry, letters)
	for n := range entries {
		entries[n] = dlq.NewEntry(death(n))
	}
	_, err := store.Put(t.Context(), entries...)
	require.NoError(t, err)
	return operate(t, store, c, cfg...), store
}

func pending() dlq.Filter { return dlq.Filter{Statuses: []dlq.Status{dlq.Pending}} }
