package sqlqueue

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/internal/sqldb"
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
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
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
	d := urlDriver{scheme: string(name)}
	if err := name.Validate(); err != nil {
		return nil, fmt.Errorf("sqlqueue: %w", err)
	}
	cfg := brokers.Config{}
	for _, opt := range opts {
		opt(&cfg)
	}
	cfg.URL = cmp.Or(cfg.URL, string(name)+"://db/db")
	cfg, err := cfg.Resolve(d.Params())
	if err != nil {
		return nil, err
	}
	b, err := open(ctx, db, name, string(name), cfg)
	if err != nil {
		return nil, name.Advise(err)
	}
	return b, nil
}

func open(ctx context.Context, db *sql.DB, name Dialect, scheme string, cfg brokers.Config) (*Broker, error) {
	t, err := connect(ctx, db, name, scheme, cfg)
	if err != nil {
		return nil, err
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
