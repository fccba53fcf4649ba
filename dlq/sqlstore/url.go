package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// target is the database of a URL. Readers and writers have separate pools, so that a dead letter does not wait for the
// connections of a dashboard.
type target struct {
	*sqldb.Source
	dialect dialect

	driver           string
	readers, writers int
	lifetime, idle   time.Duration
	busyTimeout      time.Duration // SQLite
	synchronous      string        // SQLite
	migrate          bool
}

// openURL opens the store that a URL names.
func openURL(ctx context.Context, u *url.URL) (*Store, error) {
	t, err := parseURL(u)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	s, err := t.open(ctx)
	if err == nil {
		return s, nil
	}
	if ctx.Err() == nil {
		err = t.Dialect.Mark(err, driver.ErrUnavailable)
	}
	return nil, fmt.Errorf("sqlstore: open %s: %w", t.name(), t.Hide(err))
}

// parseURL reads our parameters, and passes on those of the driver that change nothing this package relies on.
func parseURL(u *url.URL) (*target, error) {
	t := &target{readers: 8, writers: 4, lifetime: 30 * time.Minute, idle: 5 * time.Minute, migrate: true}
	own := map[string]sqldb.Param{
		"driver":        sqldb.Text(&t.driver),
		"migrate":       sqldb.Boolean(&t.migrate),
		"readers":       sqldb.Integer(&t.readers, 1, 1000),
		"writers":       sqldb.Integer(&t.writers, 2, 1000), // a migration holds its lock on one
		"conn-lifetime": sqldb.Duration(&t.lifetime),
	}
	var native []string
	var d postgres
	forced := url.Values{}
	switch u.Scheme {
	case "postgres", "postgresql":
		native = postgresParams
		own["schema"], own["archive"] = readSchema(&d.schema), readSchema(&d.archiveIn)
		own["partition"] = func(value string) error {
			if d.monthly = value == "month"; !d.monthly {
				return errors.New("must be month")
			}
			return nil
		}
	case "mysql", "mariadb":
		native = mysqlParams
		forced.Set("interpolateParams", "true") // one round trip instead of three
	default:
		t.readers, t.writers, t.lifetime, t.idle = 4, 1, 0, 0
		t.busyTimeout, t.synchronous = 5*time.Second, "FULL"
		delete(own, "writers")
		delete(own, "conn-lifetime")
		own["busy-timeout"] = sqldb.Duration(&t.busyTimeout)
		own["synchronous"] = t.readSynchronous
	}
	params, err := sqldb.ReadParams(u, own, func(key string) bool { return slices.Contains(native, key) })
	if err != nil {
		return nil, err
	}
	if d.schema != "" {
		if params.Has("search_path") {
			return nil, errors.New("postgres URL: schema and search_path exclude each other")
		}
		forced.Set("search_path", d.schema) // alone: a missing table must not be found in another schema
	}
	maps.Copy(params, forced)
	if t.Source, err = sqldb.ReadURL(u, params); err != nil {
		return nil, err
	}
	switch t.Dialect {
	case sqldb.PostgreSQL:
		t.Drivers = []string{"pgx"} // it accepts slices as arrays
		t.dialect = d
	case sqldb.MySQL:
		t.dialect = mysql{}
	case sqldb.SQLite:
		t.dialect = sqlite{}
		t.Pragmas = t.pragmas()
	}
	return t, nil
}

func (t *target) readSynchronous(value string) error {
	t.synchronous = strings.ToUpper(value)
	if t.synchronous != "FULL" && t.synchronous != "NORMAL" && t.synchronous != "EXTRA" {
		return errors.New("must be full, extra or normal; normal may lose the last dead letters on a power loss")
	}
	return nil
}

// name is the database in error messages.
func (t *target) name() string {
	if t.Dialect == sqldb.SQLite {
		return "sqlite file " + t.Path
	}
	return string(t.Dialect)
}

func (t *target) open(ctx context.Context) (*Store, error) {
	s := &Store{dialect: t.dialect}
	if t.Dialect == sqldb.SQLite && !t.InMemory() {
		s.spoolDir = t.Path + "-spool"
	}
	if err := t.pools(ctx, s); err != nil {
		return nil, err
	}
	return s, s.start(ctx, !t.migrate)
}

// pools makes the pools. SQLite has one writer at a time: a second connection would wait in SQLite's busy handler,
// which polls, instead of in the writer's queue. An in-memory database belongs to one connection, so it has one pool.
func (t *target) pools(ctx context.Context, s *Store) (err error) {
	write := sqldb.Pool{
		Driver: t.driver, Max: t.writers, Lifetime: t.lifetime, Idle: t.idle, IdleTx: sqldb.IdleTx,
		MustExist: !t.migrate, Writes: t.migrate, // otherwise, a standby may be read
	}
	read := write
	read.Max = t.readers
	if t.Dialect == sqldb.SQLite {
		write.Pragmas, read.Pragmas = []string{"PRAGMA journal_mode=WAL"}, []string{"PRAGMA query_only=1"}
	}
	if s.write, err = t.Connect(ctx, write); err != nil {
		return err
	}
	if s.read = s.write; t.InMemory() {
		return nil
	}
	if s.read, err = t.Open(read); err != nil {
		return errors.Join(err, s.write.Close())
	}
	return nil
}

// postgresParams are the parameters of pgx and of PostgreSQL's client library, and the session settings that are useful
// here. Others can be set by options=-c%20name=value.
var postgresParams = []string{
	"application_name", "channel_binding", "client_encoding", "connect_timeout", "default_query_exec_mode",
	"description_cache_capacity", "host", "idle_in_transaction_session_timeout", "krbspn", "krbsrvname", "lock_timeout",
	"options", "passfile", "password", "port", "role", "search_path", "service", "servicefile", "sslcert", "sslkey",
	"sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "sslsni", "statement_cache_capacity", "statement_timeout",
	"target_session_attrs", "timezone", "user", "work_mem",
}

// mysqlParams are the parameters of go-sql-driver that change nothing this package relies on.
var mysqlParams = []string{
	"allowCleartextPasswords", "allowFallbackToPlaintext", "allowNativePasswords", "allowOldPasswords",
	"checkConnLiveness", "collation", "compress", "connectionAttributes", "maxAllowedPacket", "parseTime", "readTimeout",
	"rejectReadOnly", "serverPubKey", "socket", "timeout", "tls", "writeTimeout",
}

// schemes are the URL schemes of this package.
var schemes = []string{"sqlite", "sqlite3", "postgres", "postgresql", "mysql", "mariadb"}

func init() {
	for _, scheme := range schemes {
		driver.Register(scheme, opener{})
	}
}

// opener is their driver.Driver.
type opener struct{}

var _ driver.Driver = opener{}

// OpenStore opens the store that the URL names.
func (opener) OpenStore(ctx context.Context, u *url.URL) (dlq.Store, error) {
	s, err := openURL(ctx, u)
	if err != nil {
		return nil, err // not s: a nil *Store in an interface is not nil
	}
	return s, nil
}
