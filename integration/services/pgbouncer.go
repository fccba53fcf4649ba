package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

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
	target, err := url.Parse(p.URL)
	if err != nil {
		// not err: it repeats the URL with its password
		return nil, errors.New("services: the PostgreSQL URL cannot be parsed")
	}
	dir, ports, err := newPlace("pgbouncer", owner, 1)
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
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil { //nolint:gosec // G306: read by the server's account
		return nil, errors.Join(err, removeDir(dir))
	}
	b := &PgBouncerServer{host: loopback(ports[0]), server: server{
		name: "pgbouncer", dir: dir, stopSignal: syscall.SIGTERM,
		command: func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, pgbouncerPath, file)
			cmd.Dir = dir
			owner.prepare(cmd, syscall.SIGTERM)
			return cmd
		},
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
