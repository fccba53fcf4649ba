package sqlqueue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// settleLinger lets acks gather while they arrive fast: a statement for a few rows costs the database nearly as much as
// one for hundreds. A crash in this time redelivers the messages.
const settleLinger = 5 * time.Millisecond

// transport is a queue in a database, as one process sees it. The engine above it keeps the promises to users.
type transport struct {
	cfg        brokers.Config
	scheme     string
	db         *sql.DB
	handlers   *sql.DB // for their transactions, which may take long and be idle; the same as db if the caller owns it
	ownsDB     bool
	store      *store
	poll       time.Duration
	maxMessage int64 // of ours, with what a failure adds
	largest    int64 // row that the database takes

	leases   *leases
	watcher  *watcher
	notices  *notices  // nil if the database cannot notify
	listener *listener // nil without notifications

	stop       context.CancelFunc // ends the background work
	background sync.WaitGroup
}

var (
	_ driver.Transport      = (*transport)(nil)
	_ brokers.DepthReporter = (*transport)(nil)
)

// connect creates the tables and starts the background work.
func connect(ctx context.Context, db *sql.DB, name Dialect, scheme string, cfg brokers.Config) (*transport, error) {
	store, err := newStore(db, name, cfg.Params.Duration("lease"))
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("sqlqueue: reach the database: %w", err)
	}
	if err := name.CheckSession(ctx, db); err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	if cfg.Params.Bool("migrate") {
		if err := Migrate(ctx, db, name); err != nil {
			return nil, err
		}
	}
	t := &transport{
		cfg: cfg, scheme: scheme, db: db, handlers: db,
		poll:  max(cfg.Params.Duration("poll"), shortestPause),
		store: store,
	}
	if t.largest, err = store.probe(ctx, db); err != nil {
		return nil, fmt.Errorf("sqlqueue: ask for the largest packet: %w", err)
	}
	store.most, t.maxMessage = min(maxBytes, t.largest), t.largest
	if limit := cfg.Params.Bytes("max-message"); limit > 0 {
		t.maxMessage = min(t.maxMessage, limit+driver.Headroom)
	}
	if err := t.store.ping(ctx); err != nil {
		return nil, fmt.Errorf("sqlqueue: the queue's tables cannot be read; apply the migrations, or open with "+
			"migrate=true: %w", err)
	}
	t.start(name) //nolint:contextcheck // its work outlives ctx, which is Open's
	return t, nil
}

func (t *transport) start(name Dialect) {
	if name == PostgreSQL {
		t.notices = newNotices(func(topic string, delay time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), t.cfg.PublishTimeout)
			defer cancel()
			us := strconv.FormatInt(delay.Microseconds(), 10)
			_, _ = queryInts(ctx, t.db, notifyTopic, []byte(topic), us) // consumers also poll
		})
	}
	running, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.leases = &leases{store: t.store, log: t.cfg.Logger, held: map[int64]*delivery{}, batches: map[int64]int{}}
	t.watcher = newWatcher(t.store, t.cfg.PublishTimeout, t.listening, t.cfg.Logger)
	t.background.Go(func() { t.watcher.run(running) })
	t.background.Go(func() { t.leases.run(running) })
	t.background.Go(func() { t.maintain(running) })
	// A listener occupies a connection, which a pool of one or two cannot spare.
	if conns := t.db.Stats().MaxOpenConnections; name == PostgreSQL && (conns == 0 || conns > 2) {
		t.listener = &listener{db: t.db, watcher: t.watcher, log: t.cfg.Logger}
		t.background.Go(func() { t.listener.run(running) })
	}
}

// maintainEvery bounds how long claims are slow after the table has suddenly grown.
const maintainEvery = 3 * time.Second

// maintain updates the table's statistics, and checks that the queues being read still exist.
func (t *transport) maintain(ctx context.Context) {
	for wait.For(ctx, maintainEvery) == nil {
		if err := errors.Join(t.store.maintain(ctx, t.db), t.watcher.endGone(ctx, t.store)); err != nil && ctx.Err() == nil {
			t.cfg.Logger.DebugContext(ctx, "sqlqueue: statistics or queues could not be checked", "error", err)
		}
	}
}

// wake notifies consumers in this process, and in others if the database can, that a queue has a row due after delay.
func (t *transport) wake(ctx context.Context, queue int64, delay time.Duration) {
	t.watcher.wake(queue, delay)
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = t.store.wake(ctx, t.db, queue, delay) // they also poll
}

// listening reports whether the database notifies of new messages.
func (t *transport) listening() bool { return t.listener != nil && t.listener.up.Load() }

// Declare implements driver.Transport: from then on every message published to the topic is also stored for the group.
func (t *transport) Declare(ctx context.Context, q driver.Queue) error {
	if err := errors.Join(checkName("topic", q.Topic), checkName("group", q.Group),
		checkName("dead letter topic", q.Names.Dead)); err != nil {
		return err
	}
	return t.store.name.Mark(t.store.ensureQueue(ctx, q.Topic, q.Group), driver.ErrTemporary)
}

// Receive implements driver.Transport.
func (t *transport) Receive(ctx context.Context, q driver.Queue) (driver.Stream, error) {
	id, err := t.queueOf(ctx, q.Topic, q.Group)
	if err != nil {
		return nil, t.store.name.Mark(err, driver.ErrTemporary)
	}
	s := &stream{
		reader: newReader(consumerQueue{id, q.Topic, q.Group}, t.poll),
		t:      t, q: q, prefetch: q.Params.Int("prefetch"), need: make(chan struct{}, 1), reach: 1,
		most: maxClaim,
	}
	if q.Concurrency == 1 {
		s.passed = map[int64]bool{}
	}
	t.watcher.join(s.reader)
	return s, nil
}

// queueOf returns the id of a group's queue.
func (t *transport) queueOf(ctx context.Context, topic, group string) (int64, error) {
	queue, found, err := t.store.queue(ctx, topic, group)
	if err == nil && !found {
		err = fmt.Errorf("%w: this database has no such group; start the consumer once, then try again",
			brokers.ErrUnroutable)
	}
	return queue, err
}

// Capabilities implements driver.Transport.
func (t *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme:          t.scheme,
		Durable:         true,
		Ordered:         t.cfg.Concurrency == 1,
		Groups:          true,
		Transactions:    true,
		DeliveryCount:   true,
		MaxDelay:        envelope.MaxDelay,
		DelayTolerance:  100 * time.Millisecond,
		MaxMessageBytes: t.maxMessage - driver.Headroom,
	}
}

// Traits implements driver.Transport.
func (t *transport) Traits() driver.Traits {
	return driver.Traits{
		Name: "sqlqueue", Prompt: true, NackPause: true, StablePosition: true,
		PublishBatch: maxRows, SettleBatch: maxRows, SettleLinger: settleLinger,
	}
}

// Ping implements driver.Transport. It reads the queue's tables.
func (t *transport) Ping(ctx context.Context) error {
	if err := t.store.ping(ctx); err != nil {
		return fmt.Errorf("sqlqueue: ping: %w", err)
	}
	return nil
}

// Depths counts for Broker.Depths.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	found, err := t.store.depths(ctx, maxDepth)
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: depths: %w", err)
	}
	return found, nil
}

// Close implements driver.Transport. It closes the database if the driver has opened it.
func (t *transport) Close(context.Context) error {
	if t.notices != nil {
		t.notices.close()
	}
	t.stop()
	t.background.Wait()
	if t.ownsDB {
		return errors.Join(t.db.Close(), t.handlers.Close())
	}
	return nil
}
