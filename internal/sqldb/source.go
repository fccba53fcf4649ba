package sqldb

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
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

	secrets []string
}

// ReadURL reads a URL whose query is native, the driver's own parameters. User, Host, Path and Opaque mean the same for
// every package. No error shows a password.
func ReadURL(u *url.URL, native url.Values) (*Source, error) {
	s := &Source{}
	if password, ok := u.User.Password(); ok {
		s.keepSecrets(password)
	}
	var err error
	switch u.Scheme {
	case "postgres", "postgresql":
		s.Dialect, s.Drivers = PostgreSQL, []string{"pgx", "postgres"}
		err = s.postgres(u, native)
	case "mysql", "mariadb":
		s.Dialect, s.Drivers = MySQL, []string{"mysql"}
		err = s.mysql(u, native)
	case "sqlite", "sqlite3", "":
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
	s.keepSecrets(native.Get("password"), native.Get("sslpassword"))
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
	host, port := u.Hostname(), u.Port()
	if host == "" {
		host = "localhost"
	}
	if port == "" {
		port = "3306"
	}
	address := "tcp(" + net.JoinHostPort(host, port) + ")"
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

// keepSecrets remembers what errors must not show, also URL-encoded.
func (s *Source) keepSecrets(secrets ...string) {
	for _, secret := range secrets {
		if secret != "" {
			inUser := strings.TrimPrefix(url.UserPassword("", secret).String(), ":")
			s.secrets = append(s.secrets, secret, url.QueryEscape(secret), url.PathEscape(secret), inUser)
		}
	}
}

// Hide removes secrets from an error's text; errors.Is and errors.As still see the original. The drivers hide them too,
// but do not promise to.
func (s *Source) Hide(err error) error {
	text := err.Error()
	for _, secret := range s.secrets {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	if text == err.Error() {
		return err
	}
	return &hidden{text: text, err: err}
}

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (e *hidden) Error() string { return e.text }

func (e *hidden) Unwrap() error { return e.err }
