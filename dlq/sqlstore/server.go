package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// server is what the URL of a database server says. Readers and writers have a pool each: a dashboard that asks for much does not keep
// a dead letter waiting for a connection.
type server struct {
	dialect          dialect
	drivers          []knownDriver
	driver, dsn      string
	readers, writers int
	lifetime         time.Duration
	secrets          []string
}

// idleTime is how long a connection that nobody uses stays open.
const idleTime = 5 * time.Minute

func (c *server) open(ctx context.Context) (*Store, error) {
	name, err := findDriver(c.drivers, c.driver)
	if err != nil {
		return nil, err
	}
	write, err := c.pool(name, c.writers)
	if err != nil {
		return nil, err
	}
	read, err := c.pool(name, c.readers)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	// The drivers keep prepared statements by themselves, or need none.
	s := &Store{dialect: c.dialect, write: write, read: read, statements: statements{unprepared: true}}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("sqlstore: open: %w", c.hide(err))
	}
	return s, nil
}

func (c *server) pool(driver string, connections int) (*sql.DB, error) {
	db, err := sql.Open(driver, c.dsn)
	if err != nil {
		return nil, fmt.Errorf("sqlstore: open: %w", c.hide(err))
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	db.SetConnMaxLifetime(c.lifetime)
	db.SetConnMaxIdleTime(idleTime)
	return db, nil
}

// hide takes what is secret out of an error's text. The drivers hide it too, but nothing obliges them to.
func (c *server) hide(err error) error {
	text := err.Error()
	for _, secret := range c.secrets {
		text = strings.ReplaceAll(text, secret, "xxxxx")
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// keepSecrets notes what no error may show, also in the form in which it stands in a URL.
func (c *server) keepSecrets(secrets ...string) {
	for _, secret := range secrets {
		if secret != "" {
			inUser := strings.TrimPrefix(url.UserPassword("", secret).String(), ":")
			c.secrets = append(c.secrets, secret, url.QueryEscape(secret), url.PathEscape(secret), inUser)
		}
	}
}

// param reads one of our parameters of a URL.
type param func(value string) error

// params are those that every server has.
func (c *server) params() map[string]param {
	return map[string]param{
		"driver":        func(v string) error { c.driver = v; return nil },
		"readers":       integer(&c.readers, 1, 1000),
		"writers":       integer(&c.writers, 2, 1000), // a migration holds its lock on one of them
		"conn_lifetime": duration(&c.lifetime),
	}
}

// read takes our parameters out of a URL's query, and returns the driver's. native says whether it knows one.
func readParams(name string, query url.Values, ours map[string]param, native func(string) bool) (url.Values, error) {
	rest := url.Values{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(query)) {
		values := query[key]
		read := ours[strings.TrimPrefix(key, "x-")]
		switch {
		case read != nil:
			if err := read(values[len(values)-1]); err != nil {
				errs = append(errs, fmt.Errorf("sqlstore: %s URL: parameter %s: %w", name, key, err))
			}
		case native(key):
			rest[key] = values
		default:
			errs = append(errs, fmt.Errorf("sqlstore: %s URL: unknown parameter %.40q; known are %s, each also with x- before it, "+
				"and the driver's own", name, key, strings.Join(slices.Sorted(maps.Keys(ours)), ", ")))
		}
	}
	return rest, errors.Join(errs...)
}

func integer(to *int, low, high int) param {
	return func(value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a number from %d to %d", low, high)
		}
		*to = n
		return nil
	}
}

func duration(to *time.Duration) param {
	return func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return errors.New("must be a duration such as 30m, not negative; 0 is without a limit")
		}
		*to = d
		return nil
	}
}

func boolean(to *bool) param {
	return func(value string) (err error) {
		if *to, err = strconv.ParseBool(value); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

// knownDriver is a database/sql driver by the name that it registers itself under, and its import path.
type knownDriver struct{ name, path string }

// findDriver finds the SQL driver that the program imports: the one asked for, else the first known one.
func findDriver(known []knownDriver, name string) (string, error) {
	registered := sql.Drivers()
	for _, d := range known {
		if name == "" && slices.Contains(registered, d.name) {
			name = d.name
		}
	}
	if name == "" || !slices.Contains(registered, name) {
		return "", fmt.Errorf("sqlstore: no SQL driver for this URL is in this program (registered: %s); forgotten import? add _ %q",
			orNone(registered), known[0].path)
	}
	return name, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
