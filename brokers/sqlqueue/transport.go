package sqlqueue

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/internal/wait"
)

// Broker is a queue in a SQL database. It is a [brokers.Broker] that can also publish and ack in the caller's
// transaction; brokers.Open returns one for the schemes of this package:
//
//	queue := broker.(*sqlqueue.Broker)
type Broker struct {
	*engine.Broker

	t *transport
}

var (
	_ brokers.Driver        = urlDriver{}
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
	_ driver.Transport      = (*transport)(nil)
	_ brokers.DepthReporter = (*transport)(nil)
)

// New creates a queue on db, which the caller has opened with a driver of its choice and closes after the Broker. It
// creates the tables, unless migrate=false.
//
// Options are those of brokers.Open. Only the parameters of a Config's URL are used. On MySQL, db's sessions must be
// strict, commit automatically and have charset=utf8mb4, the driver's default; New refuses others. On SQLite, db's
// connections need busy_timeout and transactions that begin as writers. In a failover, db keeps its connections to a
// server that is now read-only unless the DSN has target_session_attrs=read-write (pgx) or rejectReadOnly=true (MySQL).
// brokers.Open sets all of this, bounds how long a worker that hangs can keep a lock, and keeps the transactions of
// [InTx] apart: in db, they must leave connections for the renewal of leases.
func New(ctx context.Context, db *sql.DB, name Dialect, opts ...brokers.Option) (*Broker, error) {
	if err := name.Validate(); err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	cfg := brokers.Config{}
	for _, opt := range opts {
		opt(&cfg)
	}
	cfg.URL = cmp.Or(cfg.URL, string(name)+"://db/db")
	cfg, err := cfg.Resolve(urlDriver{}.Params())
	if err != nil {
		return nil, err
	}
	return open(ctx, db, name, string(name), cfg)
}

func open(ctx context.Context, db *sql.DB, name Dialect, scheme string, cfg brokers.Config) (*Broker, error) {
	t, err := connect(ctx, db, name, scheme, cfg)
	if err != nil {
		return nil, name.Advise(err)
	}
	//nolint:contextcheck // the broker outlives ctx, which is Open's
	b, err := engine.New(engine.Config{Config: cfg, Params: urlDriver{}.Params(), Transport: t})
	if err != nil {
		return nil, err
	}
	return &Broker{Broker: b, t: t}, nil
}

// Depths implements brokers.DepthReporter for all queues in the database. It counts messages that are delayed, in
// retry, ready and in dead letter queues. It reads only waiting rows, along the index, and at most 100,000 of them: if
// more are waiting, the counts are too low and add up to that. A message that was rescheduled while it was being
// handled, or nacked, is a retry; one that was rescheduled later counts as delayed.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.t)
}

//go:embed migrations
var migrations embed.FS

// schemaTable records the applied migrations.
const schemaTable = "redrive_queue_schema"

// Migrate creates and upgrades the queue's tables in db. Any number of processes may run it concurrently. [New] and the
// driver call it, unless migrate=false.
func Migrate(ctx context.Context, db *sql.DB, name Dialect) error {
	if err := (sqldb.Schema{Dialect: name, Files: migrations, Table: schemaTable}).Up(ctx, db); err != nil {
		return fmt.Errorf("sqlqueue: migrate: %w", err)
	}
	return nil
}

func init() {
	for _, scheme := range []string{"postgres", "postgresql", "mysql", "mariadb", "sqlite"} {
		brokers.Register(scheme, urlDriver{scheme: scheme})
	}
}

// urlDriver opens queues in the database of a URL.
type urlDriver struct{ scheme string }

// Params are the same for every database. The rest of the URL belongs to the database driver.
func (urlDriver) Params() []brokers.Param {
	return []brokers.Param{
		{Name: "driver", Doc: "Name of the database/sql driver; by default the usual ones of the scheme are tried."},
		{Name: "migrate", Type: brokers.Bool, Default: "true", Doc: "Create and upgrade the queue's tables at start."},
		{
			Name: "lease", Type: brokers.Duration, Default: "30s", Min: int64(200 * time.Millisecond),
			Max: int64(24 * time.Hour), Doc: "How long a message stays with a worker that does not renew it.",
		},
		{
			Name: "poll", Type: brokers.Duration, Default: "75ms", Min: int64(shortestPause), Max: int64(time.Hour),
			Doc: "Longest pause between two polls for new messages if the database cannot notify.",
		},
		{
			Name: "prefetch", Type: brokers.Int, Default: "1024", Max: 10_000,
			Doc: "Most messages that a subscription leases beyond those its handlers are working on.",
		},
		driver.NackPause(),
		driver.CrashLimit(),
		{
			Name: "max-message", Type: brokers.Size, Default: "0",
			Doc: "Largest message in bytes, payload and headers together; never more than the database accepts, the default.",
		},
		{
			Name: "max-connections", Type: brokers.Int, Default: "8", Min: 1, Max: 10_000,
			Doc: "Most connections to the database, and as many for transactions of handlers.",
		},
		{Name: "*", Native: true, Doc: "Every other parameter belongs to the database driver."},
	}
}

// Open opens the database and creates the queue's tables.
func (d urlDriver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("sqlqueue: the URL cannot be parsed")
	}
	b, err := openURL(ctx, u, d.scheme, cfg)
	if err != nil {
		return nil, fmt.Errorf("sqlqueue: open %s: %w", brokers.Redact(u.String()), err)
	}
	return b, nil
}

// openURL opens the database of a resolved URL without our parameters.
func openURL(ctx context.Context, u *url.URL, scheme string, cfg brokers.Config) (*Broker, error) {
	src, err := sqldb.ReadURL(u, u.Query())
	if err != nil {
		return nil, err
	}
	if src.InMemory() {
		return nil, errors.New("a database in memory is a different one on each connection: name a file, or use mem://")
	}
	pool := sqldb.Pool{
		Driver: cfg.Params.String("driver"), Max: cfg.Params.Int("max-connections"), Lifetime: 30 * time.Minute,
		IdleTx: sqldb.IdleTx, Writes: true,
	}
	db, err := src.Connect(ctx, pool)
	if err != nil {
		return nil, err
	}
	b, err := open(ctx, db, src.Dialect, scheme, cfg)
	if err != nil {
		return nil, errors.Join(src.Hide(src.Dialect.Mark(err, driver.ErrTemporary)), db.Close())
	}
	pool.IdleTx = 0
	if b.t.handlers, err = src.Open(pool); err != nil {
		//nolint:contextcheck // Close takes none
		return nil, errors.Join(err, b.Close(), db.Close())
	}
	b.t.ownsDB = true
	return b, nil
}

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

// Reaches implements driver.Reacher. A database is the same, whatever its URL, if it has the row of the delivery.
func (t *transport) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	if _, ok := from.(*transport); !ok || o.Origin.Offset == nil {
		return ok, nil
	}
	found, err := queryInts(ctx, t.store.db,
		t.store.name.Bind("SELECT id FROM redrive_queue_messages WHERE id = ? AND published_at = ?"),
		*o.Origin.Offset, o.Origin.Timestamp.UnixMicro())
	return len(found) > 0, err
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
