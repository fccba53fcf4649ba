package sqlqueue

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

func init() {
	for _, scheme := range []string{"postgres", "postgresql", "mysql", "mariadb", "sqlite"} {
		brokers.Register(scheme, urlDriver{scheme: scheme})
	}
}

// urlDriver opens queues in the database of a URL.
type urlDriver struct{ scheme string }

var _ brokers.Driver = urlDriver{}

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
