package sqlqueue

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/url"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Broker is a queue in a SQL database. It is a [brokers.Broker] that can also publish and ack in the caller's transaction;
// brokers.Open returns one for the schemes of this package:
//
//	queue := broker.(*sqlqueue.Broker)
type Broker struct {
	cfg        brokers.Config
	scheme     string
	db         *sql.DB
	ownsDB     bool
	store      *store
	log        *slog.Logger
	poll       time.Duration
	nackDelay  time.Duration
	maxMessage int64

	lanes    *lanes
	notices  *notices
	notifies bool // the database can
	wakeups  *wakeups
	leases   *leases
	settler  *settler
	mover    *mover
	listener *listener // nil without notifications

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	closing     bool // no more subscriptions
	closed      bool // no more publishes
	publishing  sync.WaitGroup

	stop       context.CancelFunc // ends the background work
	abandon    context.CancelFunc // ends attempts to store acks
	background sync.WaitGroup
	done       chan struct{} // Close has finished
}

var _ brokers.Broker = (*Broker)(nil)

// New makes a queue of db, which the caller has opened with a driver of its choice and closes after the Broker. It makes
// the tables, unless migrate=false.
//
// Options are those of brokers.Open. A Config's URL is ignored but for its parameters. On SQLite, db's connections need
// busy_timeout and transactions that begin as writers; brokers.Open sets them.
func New(ctx context.Context, db *sql.DB, name Dialect, opts ...brokers.Option) (*Broker, error) {
	d := urlDriver{scheme: string(name)}
	if _, err := dialectOf(name); err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	cfg := brokers.Config{}
	for _, opt := range opts {
		opt(&cfg)
	}
	if cfg.URL == "" {
		cfg.URL = string(name) + "://db/db"
	}
	cfg, err := cfg.Resolve(d.Params())
	if err != nil {
		return nil, err
	}
	return open(ctx, db, name, string(name), cfg)
}

// open makes the tables and starts the background work.
func open(ctx context.Context, db *sql.DB, name Dialect, scheme string, cfg brokers.Config) (*Broker, error) {
	dialect, err := dialectOf(name)
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	if err := db.PingContext(ctx); err != nil {
		return nil, fmt.Errorf("sqlqueue: reach the database: %w", err)
	}
	if cfg.Params.Bool("migrate") {
		if err := Migrate(ctx, db, name); err != nil {
			return nil, err
		}
	}
	b := &Broker{
		cfg:       cfg,
		scheme:    scheme,
		db:        db,
		log:       cfg.Logger,
		poll:      max(cfg.Params.Duration("poll"), shortestPause),
		nackDelay: cfg.Params.Duration("nack-delay"),
		store: &store{
			db:        db,
			dialect:   dialect,
			worker:    1 + rand.Int64N(math.MaxInt64), //nolint:gosec // G404: tells workers apart, keeps no secret
			lease:     cfg.Params.Duration("lease"),
			retention: cfg.Params.Duration("retention"),
		},
		wakeups:     &wakeups{},
		subscribers: map[*subscriber]struct{}{},
		done:        make(chan struct{}),
	}
	if b.maxMessage, err = dialect.probe(ctx, db); err != nil {
		return nil, fmt.Errorf("sqlqueue: ask for the largest packet: %w", err)
	}
	if err := b.store.ping(ctx); err != nil {
		return nil, fmt.Errorf("sqlqueue: the queue's tables cannot be read; apply the migrations, or open with migrate=true: %w", err)
	}
	b.start(name) //nolint:contextcheck // its work outlives ctx, which is Open's
	return b, nil
}

func (b *Broker) start(name Dialect) {
	b.lanes = newLanes(func(topic string, rows []row) error {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PublishTimeout)
		defer cancel()
		delay := shortest(rows)
		notify := !b.notifies || b.notices.publish(topic)
		if err := b.store.insert(ctx, topic, rows, notify); err != nil {
			return err
		}
		if !notify {
			b.notices.owe(topic, delay)
		}
		b.wakeTopic(topic, delay)
		return nil
	})
	pg, notifies := b.store.dialect.(*postgres)
	b.notifies = notifies
	b.notices = newNotices(func(topic string, delay time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PublishTimeout)
		defer cancel()
		_ = pg.wakeTopic(ctx, b.db, topic, delay) // consumers also look
	})
	settling, abandon := context.WithCancel(context.Background())
	running, stop := context.WithCancel(context.Background())
	b.abandon, b.stop = abandon, stop
	b.leases = &leases{store: b.store, log: b.log, held: map[int64]*delivery{}, batches: map[int64]int{}}
	b.settler = &settler{ctx: settling, store: b.store, leases: b.leases, wakeup: b.wakeups, log: b.log}
	b.settler.batcher = batcher[outcome]{flush: b.settler.settle, max: maxRows, linger: ackLinger}

	b.mover = newMover(b.store, b.cfg.PublishTimeout)

	b.background.Go(func() { b.leases.run(running) })
	b.background.Go(func() { b.tend(running) })
	if b.store.retention > 0 {
		b.background.Go(func() { b.purge(running) })
	}
	// A listener keeps a connection for itself, which a pool of one or two cannot spare.
	if conns := b.db.Stats().MaxOpenConnections; name == PostgreSQL && b.cfg.Params.Bool("listen") && (conns == 0 || conns > 2) {
		b.listener = &listener{db: b.db, wakeup: b.wakeups, log: b.log}
		b.background.Go(func() { b.listener.run(running) })
	}
}

// listening tells whether the database says when something new is there.
func (b *Broker) listening() bool { return b.listener != nil && b.listener.up.Load() }

// wakeTopic wakes the subscriptions of this process. Those of others are told by the database, or look for themselves.
func (b *Broker) wakeTopic(topic string, after time.Duration) {
	if b.listening() {
		return // the notification is on its way, also for queues that this process does not know
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range b.subscribers {
		for _, queue := range s.queuesOf(topic) {
			b.wakeups.wake(queue, after)
		}
	}
}

// enter admits one operation and returns what to call at its end.
func (b *Broker) enter() (leave func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, brokers.ErrClosed
	}
	b.publishing.Add(1)
	return b.publishing.Done, nil
}

// Publisher returns a publisher that stores each call's messages in one transaction, together with those of other callers
// that publish to the topic at the same time. See [brokers.Broker].
func (b *Broker) Publisher() message.Publisher { return &publisher{broker: b} }

// group is the default consumer group.
func (b *Broker) group() string {
	if b.cfg.Group == "" {
		return brokers.DefaultGroup
	}
	return b.cfg.Group
}

// DeadLetter publishes d.Message to the topic that the naming scheme gives for dead letters of d.Origin, where it waits
// for a consumer. Its headers say where it came from, for whoever sends it back. See [brokers.Broker].
func (b *Broker) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	group := d.Origin.Consumer
	if group == "" {
		group = b.group()
	}
	topic := b.cfg.Naming.For(d.Origin.Topic, group).Dead
	done, err := b.enter()
	if err != nil {
		return fmt.Errorf("sqlqueue: dead letter to %q: %w", topic, err)
	}
	defer done()
	if err = context.Cause(ctx); err == nil {
		if err = checkName("topic", topic); err == nil {
			err = checkSize(d.Message, b.maxMessage)
		}
	}
	if err == nil {
		m := d.Message.Copy()
		m.Metadata[envelope.KeyTopic], m.Metadata[envelope.KeyConsumer] = d.Origin.Topic, group
		if d.Reason != "" && m.Metadata[envelope.KeyDeadLetterReason] == "" {
			m.Metadata[envelope.KeyDeadLetterReason] = string(d.Reason)
		}
		err = b.lanes.publish(topic, []row{newRow(m, 0)})
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: dead letter to %q: %w", topic, err)
	}
	return nil
}

// Capabilities of a queue in this database.
func (b *Broker) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme:          b.scheme,
		Durable:         true,
		Ordered:         b.cfg.Concurrency == 1,
		Groups:          true,
		Transactions:    true,
		DeliveryCount:   true,
		MaxDelay:        envelope.MaxDelay,
		DelayTolerance:  100 * time.Millisecond,
		MaxMessageBytes: b.maxMessage,
	}
}

// Ping reads the queue's tables.
func (b *Broker) Ping(ctx context.Context) error {
	done, err := b.enter()
	if err == nil {
		defer done()
		err = b.store.ping(ctx)
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: ping: %w", err)
	}
	return nil
}

// Close drains every subscriber, lets publishes finish, and closes the database if the Broker opened it.
func (b *Broker) Close() error {
	b.mu.Lock()
	first := !b.closing
	b.closing = true
	open := make([]*subscriber, 0, len(b.subscribers))
	for s := range b.subscribers {
		open = append(open, s)
	}
	b.mu.Unlock()
	if !first {
		<-b.done
		return nil
	}
	defer close(b.done)

	var drains sync.WaitGroup
	for _, s := range open {
		drains.Go(func() { _ = s.Close() }) // it has nothing to report
	}
	drains.Wait()

	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.publishing.Wait()
	b.notices.close()
	b.abandon()
	b.stop()
	b.background.Wait()
	if b.ownsDB {
		if err := b.db.Close(); err != nil {
			return fmt.Errorf("sqlqueue: close: %w", err)
		}
	}
	return nil
}

// redactURL keeps secrets out of errors about u.
func redactURL(u *url.URL) string { return brokers.Redact(u.String()) }
