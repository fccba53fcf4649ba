package sqldb

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Pool configures the connections to a database.
type Pool struct {
	// Driver is the name of the database/sql driver. Defaults to the first of the source's that the program imports.
	Driver string
	// Max is the maximum number of connections.
	Max int
	// Lifetime is how long a connection is used, Idle how long an unused one stays open; 0 means no limit.
	Lifetime, Idle time.Duration
	// IdleTx is how long a transaction may be idle before the server aborts it with its session; 0 means no limit. Behind
	// a pooler and with drivers other than pgx the server's own limit remains. MySQL ends every idle session after that
	// time, so unused connections stay open for half of it at most.
	IdleTx time.Duration
	// Pragmas are run on each new connection to SQLite, after the source's.
	Pragmas []string
	// MustExist refuses to create SQLite's file.
	MustExist bool
}

// importPaths are the drivers that this module is tested with.
var importPaths = map[string]string{
	"pgx": "github.com/jackc/pgx/v5/stdlib", "postgres": "github.com/lib/pq", "mysql": "github.com/go-sql-driver/mysql",
	"sqlite": "modernc.org/sqlite", "sqlite3": "github.com/mattn/go-sqlite3",
}

// FindDriver returns the driver of this name, or else the first known one that the program imports.
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

// Open makes a pool without opening a connection yet. Its errors show no password.
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
		_ = db.Close() // has no connection yet
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
