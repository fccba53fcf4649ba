package services

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PostgresConfig describes the setup of a test's own PostgreSQL. The zero value is fast and loses commits when the
// machine (not the process) crashes.
type PostgresConfig struct {
	// Durable keeps PostgreSQL's default settings for fsync, synchronous_commit and full_page_writes, which tests of
	// durability and realistic benchmarks need.
	Durable bool

	// Settings are additional settings, such as "max_connections": "500".
	Settings map[string]string
}

// PostgresServer is a running PostgreSQL.
type PostgresServer struct {
	server

	// URL is postgres://user@host:port/postgres?sslmode=disable, with a superuser unless the environment names another
	// user.
	URL string
}

var sharedPostgres lazy[*PostgresServer]

// SharedPostgres returns the database server that all tests of the process share. Use Database to separate tests.
func SharedPostgres(t testing.TB) *PostgresServer {
	t.Helper()
	return sharedPostgres.get(t, func(ctx context.Context) (*PostgresServer, error) {
		if u := os.Getenv("TEST_POSTGRES_URL"); u != "" {
			return &PostgresServer{server: server{name: "postgres", external: true}, URL: u}, nil
		}
		return StartPostgres(ctx, PostgresConfig{})
	})
}

// Postgres starts a database server for this test only, and stops it at the end of the test.
func Postgres(t testing.TB, cfg PostgresConfig) *PostgresServer {
	t.Helper()
	return own(t, cfg, StartPostgres)
}

// StartPostgres creates an empty cluster and starts it. The caller must close it.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (*PostgresServer, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, &UnavailableError{Service: "postgres", Env: "TEST_POSTGRES_URL", Cause: err}
	}
	owner, err := installed("postgres", "TEST_POSTGRES_URL", "postgres", filepath.Join(bin, "initdb"))
	if err != nil {
		return nil, err
	}
	at, ports, err := newPlace("postgres", owner, 1)
	if err != nil {
		return nil, err
	}
	// SIGQUIT is PostgreSQL's immediate shutdown, which also frees its shared memory.
	at.env, at.death = []string{"PATH=" + bin + ":/usr/bin:/bin"}, syscall.SIGQUIT
	args := []string{"-D", at.in("data"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions"}
	if !cfg.Durable {
		args = append(args, "--no-sync")
	}
	if err := at.setUp(ctx, filepath.Join(bin, "initdb"), args...); err != nil {
		return nil, errors.Join(err, removeDir(at.dir))
	}
	p := &PostgresServer{
		URL: (&url.URL{
			Scheme: "postgres", User: url.User("postgres"), Host: loopback(ports[0]), Path: "/postgres",
			RawQuery: "sslmode=disable",
		}).String(),
		server: server{
			name:       "postgres",
			place:      at,
			stopSignal: syscall.SIGINT, // "fast": ends the sessions; SIGTERM would wait for them
			command: func(ctx context.Context) *exec.Cmd {
				return at.run(ctx, filepath.Join(bin, "postgres"), cfg.args(&at, ports[0])...)
			},
		},
	}
	p.ready = func(ctx context.Context) error { return p.exec(ctx) }
	return started(ctx, p)
}

// Database creates an empty database for the test, drops it at the end, and returns its URL.
func (p *PostgresServer) Database(t testing.TB) string {
	t.Helper()
	return scratch(t, p.URL, func(ctx context.Context, name string) error {
		return p.exec(ctx, "CREATE DATABASE "+name)
	}, func(ctx context.Context, name string) error {
		return p.exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	})
}

// FailOver makes the database of a URL read-only and ends its sessions. Sessions that begin after restore can write.
func (p *PostgresServer) FailOver(t testing.TB, database string) (restore func()) {
	t.Helper()
	u, err := url.Parse(database)
	Need(t, err)
	name := strings.TrimPrefix(u.Path, "/")
	Need(t, p.exec(t.Context(), "ALTER DATABASE "+name+" SET default_transaction_read_only = on",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+name+"'"))
	return func() { Need(t, p.exec(t.Context(), "ALTER DATABASE "+name+" RESET default_transaction_read_only")) }
}

// exec runs statements on a separate connection; without statements it checks that the server responds.
func (p *PostgresServer) exec(ctx context.Context, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("services: postgres: %w", err)
		}
	}
	return nil
}

// postgresBin returns the directory of the newest installed PostgreSQL.
func postgresBin() (string, error) {
	bins, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(bins) == 0 {
		return "", errors.Join(err, fmt.Errorf("no directory /usr/lib/postgresql/*/bin: %w", os.ErrNotExist))
	}
	return slices.Max(bins), nil // versions have two digits
}

// args are the arguments of the server.
func (c *PostgresConfig) args(at *place, port int) []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": at.dir,
	}
	if !c.Durable {
		settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"] = "off", "off", "off"
	}
	maps.Copy(settings, c.Settings)
	args := []string{"-D", at.in("data")}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// PgBouncerServer is a running pgbouncer in front of a PostgreSQL, in transaction mode: each transaction, and each
// statement outside of one, may run on a different session of the server.
type PgBouncerServer struct {
	server
	host string
}

const pgbouncerPath = "/usr/sbin/pgbouncer"

// PgBouncer starts a pgbouncer in front of p for this test only, and stops it at the end of the test.
func PgBouncer(t testing.TB, p *PostgresServer) *PgBouncerServer {
	t.Helper()
	return own(t, p, startPgBouncer)
}

func startPgBouncer(ctx context.Context, p *PostgresServer) (*PgBouncerServer, error) {
	owner, err := installed("pgbouncer", "OPTIONAL_SERVICES=pgbouncer", "postgres", pgbouncerPath)
	if err != nil {
		return nil, err
	}
	target, err := parseURL(p.URL)
	if err != nil {
		return nil, err
	}
	at, ports, err := newPlace("pgbouncer", owner, 1)
	if err != nil {
		return nil, err
	}
	login := "user=" + target.User.Username()
	if password, ok := target.User.Password(); ok {
		login += " password=" + password
	}
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s %s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
`, target.Hostname(), target.Port(), login, ports[0])
	at.death = syscall.SIGTERM
	if err := at.write("pgbouncer.ini", config); err != nil {
		return nil, errors.Join(err, removeDir(at.dir))
	}
	b := &PgBouncerServer{host: loopback(ports[0]), server: server{
		name: "pgbouncer", place: at, stopSignal: syscall.SIGTERM,
		command: func(ctx context.Context) *exec.Cmd { return at.run(ctx, pgbouncerPath, at.in("pgbouncer.ini")) },
	}}
	b.ready = func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, b.Through(p.URL)+"&default_query_exec_mode=simple_protocol")
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	return started(ctx, b)
}

// Through returns the URL of a database of its server through pgbouncer.
func (b *PgBouncerServer) Through(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		return ""
	}
	u.Host = b.host
	return u.String()
}
