package sqlqueue

import (
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/internal/sqliteconn"
)

// source says how to open the database of a URL.
type source struct {
	dialect Dialect
	drivers []string // names to look for in database/sql, best first
	dsn     string
	pragmas []string // run on each new connection
}

// sourceOf reads a resolved broker URL: one without our parameters.
func sourceOf(u *url.URL) (source, error) {
	switch u.Scheme {
	case "postgres", "postgresql":
		return source{dialect: PostgreSQL, drivers: []string{"pgx", "postgres"}, dsn: u.String()}, nil
	case "mysql", "mariadb":
		dsn, err := mysqlDSN(u)
		return source{dialect: MySQL, drivers: []string{"mysql"}, dsn: dsn}, err
	case "sqlite":
		dsn, err := sqliteDSN(u)
		return source{dialect: SQLite, drivers: []string{"sqlite", "sqlite3"}, dsn: dsn, pragmas: pragmas(u)}, err
	}
	return source{}, fmt.Errorf("unknown scheme %q", u.Scheme)
}

// mysqlDSN writes go-sql-driver's own form, user:password@tcp(host:port)/database?parameters. It needs no escaping: the
// driver looks for the last @ and the last slash.
func mysqlDSN(u *url.URL) (string, error) {
	database := strings.TrimPrefix(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return "", errors.New("the URL names no database; write mysql://user@host:3306/database")
	}
	var dsn strings.Builder
	if u.User != nil {
		dsn.WriteString(u.User.Username())
		if password, ok := u.User.Password(); ok {
			dsn.WriteString(":" + password)
		}
		dsn.WriteString("@")
	}
	query := u.Query()
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "3306")
	}
	if socket := query.Get("socket"); socket != "" {
		query.Del("socket")
		dsn.WriteString("unix(" + socket + ")")
	} else {
		dsn.WriteString("tcp(" + address + ")")
	}
	dsn.WriteString("/" + url.PathEscape(database))
	if len(query) > 0 {
		dsn.WriteString("?" + query.Encode())
	}
	return dsn.String(), nil
}

// sqlitePragmas make confirmed messages survive a loss of power (synchronous), readers and the writer independent
// (journal_mode), and processes that share the file wait for each other (busy_timeout, in ms).
var sqlitePragmas = []string{
	"PRAGMA busy_timeout = 10000",
	"PRAGMA journal_mode = WAL",
	"PRAGMA synchronous = FULL",
}

// pragmas leaves out what the URL sets itself: _pragma=synchronous(normal), in the form of modernc.org/sqlite.
func pragmas(u *url.URL) (list []string) {
	for _, pragma := range sqlitePragmas {
		name := strings.Fields(pragma)[1]
		if !slices.ContainsFunc(u.Query()["_pragma"], func(set string) bool { return strings.HasPrefix(set, name) }) {
			list = append(list, pragma)
		}
	}
	return list
}

func sqliteDSN(u *url.URL) (string, error) {
	path := u.Host + u.Path
	if u.Opaque != "" {
		path = u.Opaque
	}
	switch {
	case path == "" || path == "/":
		return "", errors.New("the URL names no file; write sqlite:///var/lib/app/queue.db or sqlite://queue.db")
	case strings.Contains(path, ":memory:") || u.Query().Get("mode") == "memory":
		return "", errors.New("a database in memory is a different one on each connection: name a file, or use mem://")
	}
	query := u.Query()
	query.Set("_txlock", "immediate") // a transaction that begins as a reader cannot wait for the writer
	return "file:" + (&url.URL{Path: path}).EscapedPath() + "?" + query.Encode(), nil
}

// open opens the pool. Nothing in its errors comes from the DSN.
func (s source) open(driverName string, maxConns int) (*sql.DB, error) {
	registered := sql.Drivers()
	candidates := s.drivers
	if driverName != "" {
		candidates = []string{driverName}
	}
	i := slices.IndexFunc(candidates, func(name string) bool { return slices.Contains(registered, name) })
	if i < 0 {
		return nil, fmt.Errorf("no database/sql driver is registered under %s (registered are: %s); forgotten import? %s",
			strings.Join(candidates, " or "), strings.Join(registered, ", "), s.dialect.importHint())
	}
	driverName = candidates[i]
	db, err := sql.Open(driverName, s.dsn)
	if err != nil {
		return nil, errors.New("the driver " + driverName + " refuses the address; check host, port, database and parameters")
	}
	if len(s.pragmas) > 0 {
		connector := sqliteconn.New(db.Driver(), s.dsn, s.pragmas...)
		_ = db.Close() // it has no connection yet
		db = sql.OpenDB(connector)
	}
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	return db, nil
}

func (d Dialect) importHint() string {
	return map[Dialect]string{
		PostgreSQL: `try _ "github.com/jackc/pgx/v5/stdlib"`,
		MySQL:      `try _ "github.com/go-sql-driver/mysql"`,
		SQLite:     `try _ "modernc.org/sqlite"`,
	}[d]
}
