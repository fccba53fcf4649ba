package services

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MariaDBConfig says how a MariaDB of a test's own is set up. The zero value is fast and forgets what it promised when
// the machine (not the process) crashes.
type MariaDBConfig struct {
	// Durable keeps InnoDB's own settings, which flush at every commit and write pages twice.
	Durable bool

	// Args are further arguments of mariadbd, such as "--max-connections=500".
	Args []string
}

// MariaDBServer is a running MariaDB.
type MariaDBServer struct {
	server

	// URL is mysql://user@host:port/, a superuser's unless the environment named another. MySQLDSN gives the form that
	// Go's driver takes.
	URL string
}

var sharedMariaDB lazy[*MariaDBServer]

// SharedMariaDB returns the database server that all tests of the process share. Use Database to keep apart.
func SharedMariaDB(t testing.TB) *MariaDBServer {
	t.Helper()
	m, err := sharedMariaDB.get(func() (*MariaDBServer, error) {
		if u := os.Getenv("TEST_MYSQL_URL"); u != "" {
			return &MariaDBServer{server: server{name: "mariadb", external: true}, URL: u}, nil
		}
		return StartMariaDB(context.Background(), MariaDBConfig{})
	})
	Need(t, err)
	return m
}

// MariaDB starts a database server that belongs to the test alone and ends with it.
func MariaDB(t testing.TB, cfg MariaDBConfig) *MariaDBServer {
	t.Helper()
	m, err := StartMariaDB(t.Context(), cfg)
	Need(t, err)
	owned(t, m)
	return m
}

// StartMariaDB makes an empty data directory and starts a server on it. The caller closes it.
func StartMariaDB(ctx context.Context, cfg MariaDBConfig) (*MariaDBServer, error) {
	owner, err := installed("mariadb", "TEST_MYSQL_URL", "mysql", "/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	dir, err := newDir("mariadb", owner)
	if err != nil {
		return nil, fmt.Errorf("services: mariadb: %w", err)
	}
	data := mariaData{dir: dir, owner: owner, port: ports[0], cfg: cfg}
	if err := data.init(ctx); err != nil {
		return nil, errors.Join(err, removeDir(dir))
	}
	m := &MariaDBServer{
		URL: (&url.URL{Scheme: "mysql", User: url.User("root"), Host: loopback(ports[0]), Path: "/"}).String(),
		server: server{
			name:       "mariadb",
			dir:        dir,
			stopSignal: syscall.SIGTERM,
			command:    data.command,
		},
	}
	m.ready = func(ctx context.Context) error { return m.exec(ctx, "SELECT 1") }
	if err := m.Start(ctx); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// Database makes an empty database for the test, drops it after, and returns its URL, mysql://...
func (m *MariaDBServer) Database(t testing.TB) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text()[:10])
	if err := m.exec(t.Context(), "CREATE DATABASE "+name+" CHARACTER SET utf8mb4"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := m.exec(ctx, "DROP DATABASE IF EXISTS "+name); err != nil {
			t.Logf("leave database %s: %v", name, err) // the test may have killed the server
		}
	})
	u, err := url.Parse(m.URL)
	if err != nil {
		t.Fatal("services: the MySQL URL cannot be parsed") // not err: it repeats the URL with its password
	}
	u.Path = "/" + name
	return u.String()
}

// MySQLDSN turns mysql://user:password@host:port/database?parseTime=true into what Go's MySQL driver opens. Times are
// parsed unless the URL says otherwise.
func MySQLDSN(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "mysql" {
		return "", errors.New("services: not a mysql:// URL")
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	dsn := cfg.FormatDSN()
	params := u.Query()
	if !params.Has("parseTime") {
		params.Set("parseTime", "true")
	}
	if strings.Contains(dsn, "?") {
		return dsn + "&" + params.Encode(), nil
	}
	return dsn + "?" + params.Encode(), nil
}

// exec runs one statement on a connection of its own.
func (m *MariaDBServer) exec(ctx context.Context, statement string) error {
	dsn, err := MySQLDSN(m.URL)
	if err != nil {
		return err
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // a server that is about to start is no news
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("services: mariadb: %w", err)
	}
	return nil
}

// mariaData is where one server lives.
type mariaData struct {
	dir   string
	owner account
	port  int
	cfg   MariaDBConfig
}

func (d mariaData) init(ctx context.Context) error {
	args := []string{"--no-defaults", "--datadir=" + d.data(), "--auth-root-authentication-method=normal", "--skip-test-db"}
	cmd := exec.CommandContext(ctx, "/usr/bin/mariadb-install-db", args...)
	d.prepare(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("services: mariadb: mariadb-install-db: %w: %s", err, out)
	}
	return nil
}

func (d mariaData) command(ctx context.Context) *exec.Cmd {
	args := []string{
		"--no-defaults",
		// Of its own: a server that starts removes what it takes for an earlier one's temporary tables.
		"--tmpdir=" + d.dir,
		"--datadir=" + d.data(),
		"--bind-address=127.0.0.1",
		"--port=" + strconv.Itoa(d.port),
		"--socket=" + filepath.Join(d.dir, "s.sock"),
		"--pid-file=" + filepath.Join(d.dir, "pid"),
		"--skip-log-bin",
		"--skip-name-resolve",
	}
	if !d.cfg.Durable {
		args = append(args, "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0")
	}
	cmd := exec.CommandContext(ctx, "/usr/sbin/mariadbd", append(args, d.cfg.Args...)...)
	d.prepare(cmd)
	return cmd
}

func (d mariaData) prepare(cmd *exec.Cmd) {
	cmd.Dir = d.dir
	cmd.Env = []string{"HOME=" + d.dir, "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C.UTF-8"}
	d.owner.prepare(cmd, syscall.SIGKILL)
}

func (d mariaData) data() string { return filepath.Join(d.dir, "data") }
