package sqldb

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/duration"
	"github.com/redrive-go/redrive/internal/scheme"
	"github.com/redrive-go/redrive/internal/secrets"
)

// Source is the database that a URL names.
type Source struct {
	Dialect Dialect
	// Drivers are the names to look for in database/sql, the best first.
	Drivers []string
	// DSN is passed to the driver. It contains passwords.
	DSN string
	// Path is SQLite's file; ":memory:" is an in-memory database, a different one on each connection.
	Path string
	// Pragmas are run on each new connection to SQLite.
	Pragmas []string

	secrets []string // errors must not show them
}

// ReadURL reads a URL whose query is native, the driver's own parameters. User, Host, Path and Opaque mean the same for
// every package. No error shows a password.
func ReadURL(u *url.URL, native url.Values) (*Source, error) {
	s := &Source{}
	if password, ok := u.User.Password(); ok {
		s.secrets = append(s.secrets, password)
	}
	var err error
	switch scheme.Canonical(u.Scheme) {
	case "postgres":
		s.Dialect, s.Drivers = PostgreSQL, []string{"pgx", "postgres"}
		err = s.postgres(u, native)
	case "mysql":
		s.Dialect, s.Drivers = MySQL, []string{"mysql"}
		err = s.mysql(u, native)
	case "sqlite", "":
		s.Dialect, s.Drivers = SQLite, []string{"sqlite", "sqlite3"}
		err = s.sqlite(u, native)
	default:
		err = fmt.Errorf("unknown scheme %q", u.Scheme)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Source) postgres(u *url.URL, native url.Values) error {
	if strings.Trim(u.Path, "/") == "" && !native.Has("service") && !native.Has("dbname") {
		return errors.New("the URL names no database; write postgres://user@host:5432/database")
	}
	s.secrets = append(s.secrets, native.Get("password"), native.Get("sslpassword"))
	dsn := *u
	// libpq does not decode a + as a space.
	dsn.Scheme, dsn.RawQuery = "postgres", strings.ReplaceAll(native.Encode(), "+", "%20")
	s.DSN = dsn.String()
	return nil
}

// mysql writes the DSN of go-sql-driver, user:password@tcp(host:port)/database?parameters. Only the database is
// escaped: the driver looks for the last slash, the last @ before it, and the first colon.
func (s *Source) mysql(u *url.URL, native url.Values) error {
	database := strings.TrimPrefix(u.Path, "/")
	if database == "" || strings.Contains(database, "/") {
		return errors.New("the URL names no database; write mysql://user@host:3306/database")
	}
	var dsn strings.Builder
	if u.User != nil {
		if strings.Contains(u.User.Username(), ":") {
			return errors.New("the driver does not support a colon in the user name")
		}
		dsn.WriteString(u.User.Username())
		if password, ok := u.User.Password(); ok {
			dsn.WriteString(":" + password)
		}
		dsn.WriteString("@")
	}
	address := "tcp(" + net.JoinHostPort(cmp.Or(u.Hostname(), "localhost"), cmp.Or(u.Port(), "3306")) + ")"
	if socket := native.Get("socket"); socket != "" {
		address = "unix(" + socket + ")"
		native.Del("socket")
	}
	setMySQLSession(native)
	dsn.WriteString(address + "/" + url.PathEscape(database) + "?" + native.Encode())
	s.DSN = dsn.String()
	return nil
}

// memory is the path of an in-memory database.
const memory = ":memory:"

func (s *Source) sqlite(u *url.URL, native url.Values) error {
	s.Path = u.Host + u.Path
	if u.Opaque != "" {
		s.Path, _, _ = strings.Cut(u.Opaque, "?")
	}
	if s.Path == "" || s.Path == "/" {
		return errors.New("the URL names no file; write sqlite:///var/lib/app/file.db, or sqlite:file.db")
	}
	if strings.Contains(s.Path, memory) || native.Get("mode") == "memory" {
		s.Path = memory
	}
	native.Set("_txlock", "immediate") // a transaction that begins as a reader cannot wait for the writer
	s.DSN = sqliteDSN(s.Path, native)
	s.Pragmas = pragmas(native)
	return nil
}

// InMemory reports whether it is an in-memory database.
func (s *Source) InMemory() bool { return s.Path == memory }

// Hide removes secrets from an error's text; errors.Is and errors.As still see the original. The drivers hide them too,
// but do not promise to.
func (s *Source) Hide(err error) error { return secrets.Hide(err, s.secrets...) }

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
	// Writes refuses connections of pgx to a read-only server, unless the URL has target_session_attrs: during a failover
	// an address may lead to one, which the pool would keep. MySQL's driver replaces such connections.
	Writes bool
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
	return "", fmt.Errorf("no database/sql driver is registered under %s (registered: %s); forgotten import? add _ %q",
		strings.Join(candidates, " or "), cmp.Or(strings.Join(registered, ", "), "none"), importPaths[s.Drivers[0]])
}

// Open makes a pool without opening a connection yet. Its errors show no password.
func (s *Source) Open(p Pool) (*sql.DB, error) {
	driver, err := s.FindDriver(p.Driver)
	if err != nil {
		return nil, err
	}
	dsn := s.DSN
	if p.Writes && driver == "pgx" {
		dsn = withParam(dsn, "target_session_attrs", "read-write")
	}
	db, err := sql.Open(driver, dsn)
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
	} else if db, err = s.Dialect.bound(db, dsn, p.IdleTx); err != nil {
		return nil, s.Hide(err)
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

// Param reads one parameter of a URL.
type Param func(value string) error

// ReadParams reads our own parameters, with or without a leading x-, from a URL's query, and returns the database
// driver's. native reports whether the driver knows a parameter; any other is refused.
func ReadParams(u *url.URL, own map[string]Param, native func(string) bool) (url.Values, error) {
	scheme := cmp.Or(u.Scheme, string(SQLite))
	query, err := url.ParseQuery(rawQuery(u))
	if err != nil {
		return nil, fmt.Errorf("%s URL: parameters: a %% or ; that is not percent-encoded", scheme)
	}
	rest := url.Values{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(query)) {
		values := query[key]
		read := own[strings.TrimPrefix(key, "x-")]
		switch {
		case read != nil:
			if err := read(values[len(values)-1]); err != nil {
				errs = append(errs, fmt.Errorf("%s URL: parameter %s: %w", scheme, key, err))
			}
		case native(key):
			rest[key] = values
		default:
			errs = append(errs, fmt.Errorf("%s URL: unknown parameter %.40q; known are %s, each also with x- before it, and "+
				"the driver's own", scheme, key, strings.Join(slices.Sorted(maps.Keys(own)), ", ")))
		}
	}
	return rest, errors.Join(errs...)
}

// rawQuery is a URL's query. url.Parse does not split it off a path without a scheme.
func rawQuery(u *url.URL) string {
	if _, query, found := strings.Cut(u.Opaque, "?"); found {
		return query
	}
	return u.RawQuery
}

// Text accepts any text.
func Text(to *string) Param {
	return func(value string) error { *to = value; return nil }
}

// Integer accepts a number from low to high.
func Integer(to *int, low, high int) Param {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a number from %d to %d", low, high)
		}
		*to = n
		return nil
	}
}

// Duration accepts a duration that is not negative.
func Duration(to *time.Duration) Param {
	return func(value string) error {
		d, err := duration.Parse(value)
		if err != nil || d < 0 {
			return errors.New("must be a duration such as 30m, not negative; 0 means no limit")
		}
		*to = d
		return nil
	}
}

// Boolean accepts true or false.
func Boolean(to *bool) Param {
	return func(value string) (err error) {
		if *to, err = strconv.ParseBool(value); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}
