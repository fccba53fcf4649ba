package sqldb

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Pool is how the connections to a database are kept.
type Pool struct {
	// Driver is the name of the database/sql driver; the first of the source's that the program imports, when it is
	// empty.
	Driver string
	// Max is how many connections there are at most.
	Max int
	// Lifetime is how long a connection is used, Idle how long one stays open that is not; 0 is without a limit.
	Lifetime, Idle time.Duration
	// IdleTx is how long a transaction may do nothing before the server ends it with its session; 0 is without a bound.
	// Behind a pooler and with other drivers than pgx the server's own remains. MySQL ends every session that does
	// nothing for so long, so that a connection which is not used stays open for half of it at most.
	IdleTx time.Duration
	// Pragmas are run on each new connection to SQLite, after the source's.
	Pragmas []string
	// MustExist refuses to make SQLite's file.
	MustExist bool
}

// importPaths are the drivers that this module is tested with.
var importPaths = map[string]string{
	"pgx": "github.com/jackc/pgx/v5/stdlib", "postgres": "github.com/lib/pq", "mysql": "github.com/go-sql-driver/mysql",
	"sqlite": "modernc.org/sqlite", "sqlite3": "github.com/mattn/go-sqlite3",
}

// FindDriver finds the driver that the program imports: the one of this name, else the first known one.
func (s *Source) FindDriver(name string) (string, error) {
	registered, candidates := sql.Drivers(), s.Drivers
	if name != "" {
		candidates = []string{name}
	}
	for _, candidate := range candidates {
		if slices.Contains(registered, candidate) {
			return candidate, nil
		}
	}
	all := "none"
	if len(registered) > 0 {
		all = strings.Join(registered, ", ")
	}
	return "", fmt.Errorf("no database/sql driver is registered under %s (registered: %s); forgotten import? add _ %q",
		strings.Join(candidates, " or "), all, importPaths[s.Drivers[0]])
}

// Open makes a pool, which opens no connection yet. Its errors show no password.
func (s *Source) Open(p Pool) (*sql.DB, error) {
	driver, err := s.FindDriver(p.Driver)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open(driver, s.DSN)
	if err != nil {
		return nil, fmt.Errorf("the driver %s refuses the address; check host, port, database and parameters: %w", driver,
			s.Hide(err))
	}
	if s.Dialect == SQLite {
		connector := NewConnector(db.Driver(), s.DSN, slices.Concat(s.Pragmas, p.Pragmas)...)
		if !s.InMemory() {
			connector.File, connector.MustExist = s.Path, p.MustExist
		}
		_ = db.Close() // it has no connection yet
		db = sql.OpenDB(connector)
	} else if p.IdleTx > 0 {
		if db, err = s.Dialect.boundIdle(db, s.DSN, p.IdleTx); err != nil {
			return nil, s.Hide(err)
		}
	}
	db.SetMaxOpenConns(p.Max)
	db.SetMaxIdleConns(p.Max)
	db.SetConnMaxLifetime(p.Lifetime)
	if half := p.IdleTx / 2; s.Dialect == MySQL && half > 0 && (p.Idle == 0 || p.Idle > half) {
		p.Idle = half
	}
	db.SetConnMaxIdleTime(p.Idle)
	return db, nil
}
