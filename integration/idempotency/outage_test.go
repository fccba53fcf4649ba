package idempotency_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// The guard's database is killed, frozen and killed again under load, while the broker works: every effect happens
// once, and no message is dead-lettered for the outages, which are longer than the retry schedule.
func TestEffect_HappensOnceWhenTheDatabaseIsKilled(t *testing.T) {
	t.Parallel()
	services.EachDatabase(t, databaseKilled)
}

func databaseKilled(t *testing.T, s services.DatabaseServer) {
	t.Helper()
	d := openDatabase(t, s.Database(t))
	_, err := d.db.ExecContext(t.Context(), "CREATE TABLE charges (id VARCHAR(100))")
	require.NoError(t, err)
	p := newPayments(t, d.store)
	for _, outage := range []func() error{s.Kill, s.Pause, s.Kill} {
		await.Count(t, p.paid()+100, p.paid)
		require.NoError(t, outage())
		await.Count(t, p.deferrals()+100, p.deferrals, "messages are deferred in an outage")
		if s.Resume() != nil { // it was killed
			require.NoError(t, s.Start(t.Context()))
		}
	}
	await.Count(t, p.paid()+100, p.paid, "work continues after the last outage")
	n := p.stopProducing()
	// The handler whose commit was not answered has not reported its effect, and does not run again.
	var rows, different int
	await.Count(t, n, func() int {
		if err := d.db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM charges").Scan(&rows,
			&different); err != nil {
			return -1 // the first use of an old connection fails
		}
		return different
	}, "an effect is missing")
	require.NoError(t, p.router.Close()) // with the duplicates that are being handled
	require.NoError(t, <-p.ended)
	await.True(t, func() bool {
		return d.db.QueryRowContext(t.Context(), "SELECT count(*) FROM charges").Scan(&rows) == nil
	})
	require.Equal(t, n, rows, "an effect happened twice")
	t.Logf("%d effects, %d handler runs, %d deferrals", n, p.runs, p.deferred)
}

// payments is a consumer on a broker in memory whose effects are in the database.
type payments struct {
	broker brokers.Broker
	router *message.Router
	ended  <-chan error

	stop      context.CancelFunc
	producing sync.WaitGroup

	mu             sync.Mutex
	published      int
	done           map[string]bool
	runs, deferred int
}

func newPayments(t *testing.T, store *sqlstore.Store) *payments {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	p := &payments{done: map[string]bool{}}
	var err error
	p.broker, err = brokers.Open(t.Context(), "mem://", brokers.WithConfig(func(c *brokers.Config) {
		c.Group, c.Concurrency, c.Logger = "billing", 8, quiet
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.broker.Close()) })
	// All retries of an error take 40 ms.
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: p.broker, Logger: quiet, MaxAttempts: 4, Backoff: middleware.Constant(10 * time.Millisecond),
		DeadLetters: middleware.DeadLetterFunc(func(_ context.Context, l *envelope.DeadLetter) error {
			t.Errorf("%s: %s: %s", l.Message.UUID, l.Reason, l.Err.Message)
			return nil
		}),
	})
	require.NoError(t, err)
	guard, err := idempotency.New(idempotency.Config{
		Store: store, Consumer: "billing", Lease: 3 * time.Second, Logger: quiet,
		Busy: func(err error, _ time.Duration) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.deferred++
			return middleware.Defer(err, 100*time.Millisecond)
		},
	})
	require.NoError(t, err)
	p.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	p.router.AddMiddleware(pipeline.Middleware, guard.Middleware)
	p.router.AddConsumerHandler("pay", "orders", p.broker.Subscriber(), func(m *message.Message) error {
		return p.pay(m, store)
	})
	p.ended = await.Run(context.WithoutCancel(t.Context()), t, p.router)
	ctx, stop := context.WithCancel(t.Context())
	p.stop = stop
	p.producing.Go(func() { p.produce(ctx, t) })
	return p
}

func (p *payments) pay(m *message.Message, store *sqlstore.Store) error {
	p.mu.Lock()
	p.runs++
	p.mu.Unlock()
	err := store.InTx(m.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(m.Context(), "INSERT INTO charges VALUES ('"+m.UUID+"')")
		return err
	})
	if err == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done[m.UUID] = true
	}
	return err
}

// produce publishes each message twice.
func (p *payments) produce(ctx context.Context, t *testing.T) {
	t.Helper()
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		id := fmt.Sprintf("order-%d", n)
		if err := p.broker.Publisher().Publish("orders", message.NewMessage(id, []byte("{}")),
			message.NewMessage(id, []byte("{}"))); err != nil {
			t.Errorf("publish: %v", err)
			return
		}
		p.mu.Lock()
		p.published++
		p.mu.Unlock()
	}
}

func (p *payments) paid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.done)
}

func (p *payments) deferrals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deferred
}

// stopProducing returns how many different messages were published.
func (p *payments) stopProducing() int {
	p.stop()
	p.producing.Wait()
	return p.published
}
