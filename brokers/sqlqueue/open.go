package sqlqueue

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"
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
		connector := &preparedConnector{driver: db.Driver(), dsn: s.dsn, statements: s.pragmas}
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

// preparedConnector runs statements on each new connection. A DSN could do it too, but every driver spells that in its
// own way.
type preparedConnector struct {
	driver     driver.Driver
	dsn        string
	statements []string
}

// Driver implements driver.Connector.
func (c *preparedConnector) Driver() driver.Driver { return c.driver }

// Connect implements driver.Connector.
func (c *preparedConnector) Connect(ctx context.Context) (driver.Conn, error) {
	var conn driver.Conn
	err := patiently(ctx, func() (err error) {
		conn, err = c.driver.Open(c.dsn) // a driver may run what the DSN sets, before there is a busy_timeout
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, statement := range c.statements {
		if err := patiently(ctx, func() error { return execDriver(ctx, conn, statement) }); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", statement, err), conn.Close())
		}
	}
	return conn, nil
}

// patiently tries again while the file is locked: SQLite does not ask busy_timeout when two connections change the
// journal mode of a new file, or recover it, at the same time.
func patiently(ctx context.Context, try func() error) error {
	patience, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := try()
		if err == nil || !strings.Contains(err.Error(), "database is locked") || wait(patience, 5*time.Millisecond) != nil {
			return err
		}
	}
}

// lockPatience is busy_timeout where SQLite does not heed it.
const lockPatience = 10 * time.Second

func execDriver(ctx context.Context, conn driver.Conn, statement string) (err error) {
	if execer, ok := conn.(driver.ExecerContext); ok {
		if _, err := execer.ExecContext(ctx, statement, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	stmt, err := conn.Prepare(statement)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stmt.Close()) }()
	_, err = stmt.Exec(nil) //nolint:staticcheck // SA1019: a driver without ExecerContext has no newer form
	return err
}
