package sql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	wbroker "github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/internal/scheme"
	"github.com/redrive-go/redrive/internal/sqldb"
)

func init() {
	for _, name := range []string{"postgres", "postgresql", "mysql", "mariadb", "sqlite"} { // to explain why sqlite cannot
		brokers.Register(scheme.Adapted+name, Driver{})
	}
}

// Driver opens watermill+postgres:// and watermill+mysql:// URLs.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return wbroker.URLParams(
		brokers.Param{Name: "driver", Doc: "Name of the database/sql driver; by default the usual ones of the scheme are " +
			"tried."},
		brokers.Param{Name: "auto-create", Type: brokers.Bool, Default: "true", Doc: "Create missing tables."},
		brokers.Param{
			Name: "batch", Type: brokers.Int, Default: "1", Min: 1, Max: 1000,
			Doc: "Messages of one transaction; an error delivers all of them again.",
		},
		brokers.Param{
			Name: "ack-deadline", Type: brokers.Duration, Default: "24h",
			Min: int64(time.Second), Max: int64(30 * 24 * time.Hour),
			Doc: "How long a handler may take; a slower one is started again while it still runs.",
		},
		brokers.Param{
			Name: "poll", Type: brokers.Duration, Default: "100ms", Min: int64(time.Millisecond), Max: int64(time.Hour),
			Doc: "Pause between two polls for new messages.",
		},
		brokers.Param{
			Name: "max-connections", Type: brokers.Int, Default: "8", Min: 2, Max: 10_000,
			Doc: "Most connections for publishing; each subscription has one more.",
		},
		brokers.Param{Name: "*", Native: true, Doc: "Every other parameter belongs to the database driver."},
	)
}

// Open implements brokers.Driver.
func (Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return New(ctx, Config{Broker: cfg})
}

// Config is for programs that open the broker themselves.
type Config struct {
	// Broker has the URL and the settings of every broker. Required: Broker.URL. With DB only its scheme and our
	// parameters are used.
	Broker brokers.Config
	// DB is a pool of the caller, who closes it after the broker. It must allow a connection for each subscription, and
	// one more. Defaults to pools for the URL.
	DB *sql.DB
	// Schema and Offsets are the adapters of services that have their own. They default to those of the database,
	// configured as listed in the package comment. Set both or neither.
	Schema  wsql.SchemaAdapter
	Offsets wsql.OffsetsAdapter
	// Delays keeps delayed messages. The caller closes it. Defaults to the broker of the environment variable
	// x-delays-env.
	Delays brokers.Broker
	// Change may change the configuration of subscribers.
	Change func(*wsql.SubscriberConfig)
}

// New opens a broker. Close it.
func New(ctx context.Context, cfg Config) (brokers.Broker, error) {
	if cfg.DB != nil {
		cfg.Broker.URL = withoutDatabase(cfg.Broker.URL)
	}
	var err error
	if cfg.Broker, err = cfg.Broker.Resolve(Driver{}.Params()); err != nil {
		return nil, err
	}
	c := &client{
		cfg: cfg, logger: wbroker.Logger(cfg.Broker.Logger),
		tables: tables{making: make(chan struct{}, 1), known: map[string]struct{}{}},
	}
	limit, err := c.connect(ctx)
	var pub *wsql.Publisher
	if err == nil {
		pub, err = wsql.NewPublisher(c.db, wsql.PublisherConfig{SchemaAdapter: c.schema}, c.logger)
	}
	if err != nil {
		return nil, fmt.Errorf("watermill+sql: open %s: %w", brokers.Redact(cfg.Broker.URL),
			c.hide(errors.Join(c.dialect.Mark(err, driver.ErrTemporary), c.close())))
	}
	return wbroker.Open(ctx, wbroker.Config{
		Publisher:       &publisher{client: c, inner: pub},
		NewSubscriber:   c.subscriber,
		Delays:          cfg.Delays,
		Initialize:      func(ctx context.Context, topic, _ string) error { return c.ensure(ctx, topic) },
		Ping:            c.db.PingContext,
		AckGrace:        5 * time.Second,
		Durable:         true,
		Ordered:         true,
		MaxMessageBytes: limit,
		MaxConcurrency:  1,
		Broker:          cfg.Broker,
	}, Driver{}.Params(), c.databaseID)
}

// withoutDatabase allows watermill+postgres: for the scheme alone.
func withoutDatabase(raw string) string {
	if scheme, rest, found := strings.Cut(raw, "://"); found && (rest == "" || rest[0] == '?') {
		return scheme + "://db/db" + rest
	}
	return raw
}

// client creates watermill-sql's components for one database.
type client struct {
	cfg     Config
	dialect sqldb.Dialect
	db      *sql.DB // for publishing
	reading *sql.DB // for subscriptions, each of which keeps a connection while a handler runs
	hide    func(error) error
	schema  wsql.SchemaAdapter
	offsets wsql.OffsetsAdapter
	logger  watermill.LoggerAdapter
	closers []func() error

	tables
}

// connect opens the pools, chooses the adapters, and returns the size of the largest message.
func (c *client) connect(ctx context.Context) (largest int64, err error) {
	c.hide = func(err error) error { return err }
	u, err := url.Parse(strings.TrimPrefix(c.cfg.Broker.URL, scheme.Adapted))
	if err != nil {
		return 0, errors.New("the URL cannot be read") // its own text may hold the password
	}
	src, err := sqldb.ReadURL(u, u.Query())
	if err != nil {
		return 0, err
	}
	c.dialect = src.Dialect
	if err := c.adapters(); err != nil {
		return 0, err
	}
	if c.cfg.DB != nil {
		if n := c.cfg.DB.Stats().MaxOpenConnections; n == 1 {
			return 0, errors.New("DB allows one connection: a subscription keeps one while its handler runs; " +
				"allow one for each subscription and one more with SetMaxOpenConns")
		}
		c.db, c.reading = c.cfg.DB, c.cfg.DB
		return c.largest(ctx)
	}
	c.hide = src.Hide
	p := c.cfg.Broker.Params
	for to, most := range map[**sql.DB]int{&c.db: p.Int("max-connections"), &c.reading: 0} {
		db, err := src.Connect(ctx, sqldb.Pool{
			Driver: p.String("driver"), Max: most, Lifetime: 30 * time.Minute, Writes: true,
		})
		if err != nil {
			return 0, err
		}
		*to = db
		c.closers = append(c.closers, db.Close)
	}
	c.reading.SetMaxIdleConns(maxIdle)
	return c.largest(ctx)
}

// maxIdle is how many subscriptions keep their connection between two polls.
const maxIdle = 64

func (c *client) adapters() error {
	if (c.cfg.Schema == nil) != (c.cfg.Offsets == nil) {
		return errors.New("configure both Schema and Offsets, or neither: they name the same tables")
	}
	batch := c.cfg.Broker.Params.Int("batch")
	switch {
	case c.dialect == sqldb.SQLite:
		return errors.New("watermill-sql v3 has no adapter for SQLite, and its transactions would lock every writer out: " +
			"open sqlite://, the native queue")
	case c.cfg.Schema != nil:
		c.schema, c.offsets = c.cfg.Schema, c.cfg.Offsets
	case c.dialect == sqldb.PostgreSQL:
		c.schema, c.offsets = newPostgres(batch)
	default:
		c.schema, c.offsets = newMySQL(batch)
	}
	return nil
}

// largest is the size of a message that fits a packet to MySQL, with its metadata as JSON; 0 elsewhere. The database
// must answer.
func (c *client) largest(ctx context.Context) (int64, error) {
	if c.dialect != sqldb.MySQL {
		return 0, c.db.PingContext(ctx)
	}
	var packet int64
	err := c.db.QueryRowContext(ctx, "SELECT @@max_allowed_packet").Scan(&packet)
	return packet * 3 / 4, err
}

func (c *client) close() error {
	var errs []error
	for _, closer := range slices.Backward(c.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}
