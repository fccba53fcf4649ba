package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// MySQLConfig describes the setup of a test's own MySQL or MariaDB. The zero value is fast and loses commits when the
// machine (not the process) crashes.
type MySQLConfig struct {
	// Durable keeps the server's default settings: InnoDB flushes at every commit and writes pages twice, and MySQL (not
	// MariaDB) writes a binary log.
	Durable bool

	// Args are additional arguments of the server, such as "--max-connections=500".
	Args []string
}

// MySQLServer is a running MySQL or MariaDB.
type MySQLServer struct {
	server

	// URL is mysql://user@host:port/, with a superuser unless the environment names another user. MySQLDSN converts it for
	// Go's driver.
	URL string

	args []string // of its configuration
}

// RestartWith stops the server cleanly and starts it again on the same port and data, with args instead of those of its
// configuration.
func (m *MySQLServer) RestartWith(ctx context.Context, args ...string) error {
	if err := m.Stop(); err != nil {
		return err
	}
	m.args = args
	return m.Start(ctx)
}

// mysqlProduct has the differences between starting MariaDB and MySQL.
type mysqlProduct struct {
	name      string                                      // as integration/install.sh calls it
	env       string                                      // the variable that names a running one
	installed func() (program string, o account, e error) // an UnavailableError without it
	init      func(program, initFile string) (command string, args []string)
	initSQL   string   // the content of init's file
	args      []string // of every start
	fast      []string // unless it has to be durable
}

// shared returns the server that all tests of the process share: that of the environment, or one with cfg.
func (p mysqlProduct) shared(t testing.TB, l *lazy[*MySQLServer], cfg MySQLConfig) *MySQLServer {
	t.Helper()
	return l.get(t, func(ctx context.Context) (*MySQLServer, error) {
		if u := os.Getenv(p.env); u != "" {
			return &MySQLServer{server: server{name: p.name, external: true}, URL: u}, nil
		}
		return p.start(ctx, cfg)
	})
}

// start creates an empty data directory and starts a server with it. The caller must close it.
func (p mysqlProduct) start(ctx context.Context, cfg MySQLConfig) (*MySQLServer, error) {
	program, owner, err := p.installed()
	if err != nil {
		return nil, err
	}
	at, ports, err := newPlace(p.name, owner, 1)
	if err != nil {
		return nil, err
	}
	// Temporary files need a separate directory, because a starting server removes everything that looks like temporary
	// tables of an earlier one. So does the server in mariadb-install-db, which has no option for that.
	at.env = []string{"TMPDIR=" + at.dir, "PATH=/usr/bin:/bin:/usr/sbin:/sbin"}
	every := []string{"--no-defaults", "--datadir=" + at.in("data")}
	init, args := p.init(program, at.in("init.sql"))
	err = at.write("init.sql", p.initSQL)
	if err == nil {
		err = at.setUp(ctx, init, append(every, args...)...)
	}
	if err != nil {
		return nil, errors.Join(err, removeDir(at.dir))
	}
	m := &MySQLServer{
		URL:    (&url.URL{Scheme: "mysql", User: url.User("root"), Host: loopback(ports[0]), Path: "/"}).String(),
		server: server{name: p.name, place: at, stopSignal: syscall.SIGTERM},
		args:   cfg.Args,
	}
	every = slices.Concat(every, p.args, []string{
		"--bind-address=127.0.0.1", "--port=" + strconv.Itoa(ports[0]), "--socket=" + at.in("s.sock"),
		"--pid-file=" + at.in("pid"), "--skip-name-resolve",
	})
	if !cfg.Durable {
		every = append(every, p.fast...)
	}
	m.command = func(ctx context.Context) *exec.Cmd { return at.run(ctx, program, slices.Concat(every, m.args)...) }
	m.ready = func(ctx context.Context) error { return m.exec(ctx, "SELECT 1") }
	return started(ctx, m)
}

// Database creates an empty database for the test, drops it at the end, and returns its URL, mysql://...
func (m *MySQLServer) Database(t testing.TB) string {
	t.Helper()
	return scratch(t, m.URL, func(ctx context.Context, name string) error {
		return m.exec(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4")
	}, func(ctx context.Context, name string) error {
		return m.exec(ctx, "DROP DATABASE IF EXISTS "+name)
	})
}

// exec runs one statement on a separate connection.
func (m *MySQLServer) exec(ctx context.Context, statement string) error {
	dsn, err := MySQLDSN(m.URL)
	if err != nil {
		return err
	}
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	cfg.Logger = &mysql.NopLogger{} // no log lines while a server starts
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return err
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("services: %s: %w", m.name, err)
	}
	return nil
}

// mariadbEnv names a running MariaDB.
const mariadbEnv = "TEST_MARIADB_URL"

var mariadb = mysqlProduct{
	name: "mariadb",
	env:  mariadbEnv,
	installed: func() (string, account, error) {
		const program = "/usr/sbin/mariadbd"
		owner, err := installed("mariadb", mariadbEnv, "mysql", program, "/usr/bin/mariadb-install-db")
		return program, owner, err
	},
	init: func(string, string) (string, []string) {
		return "/usr/bin/mariadb-install-db", []string{"--auth-root-authentication-method=normal", "--skip-test-db"}
	},
	args: []string{"--skip-log-bin"},
	fast: []string{"--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"},
}

var sharedMariaDB lazy[*MySQLServer]

// SharedMariaDB returns the MariaDB that all tests of the process share. Use Database to separate tests.
func SharedMariaDB(t testing.TB) *MySQLServer {
	t.Helper()
	return mariadb.shared(t, &sharedMariaDB, MySQLConfig{})
}

// MariaDB starts a MariaDB for this test only, and stops it at the end of the test.
func MariaDB(t testing.TB, cfg MySQLConfig) *MySQLServer {
	t.Helper()
	return own(t, cfg, StartMariaDB)
}

// StartMariaDB creates an empty data directory and starts a MariaDB with it. The caller must close it.
func StartMariaDB(ctx context.Context, cfg MySQLConfig) (*MySQLServer, error) {
	return mariadb.start(ctx, cfg)
}

// mysqlEnv names a running MySQL.
const mysqlEnv = "TEST_MYSQL_URL"

var mysqlItself = mysqlProduct{
	name:      "mysql",
	env:       mysqlEnv,
	installed: mysqlInstalled,
	init: func(program, initFile string) (string, []string) {
		return program, append([]string{"--initialize-insecure", "--init-file=" + initFile}, mysqlArgs()...)
	},
	// Its default root user is only for the socket, and names are not resolved.
	initSQL: "CREATE USER root@'127.0.0.1'; GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n",
	args:    mysqlArgs(),
	fast:    []string{"--skip-log-bin", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF"},
}

// mysqlArgs are arguments for every start. The server has no directory for files, and no port for the X protocol.
func mysqlArgs() []string {
	args := []string{"--secure-file-priv=NULL", "--mysqlx=OFF"}
	if os.Geteuid() == 0 {
		args = append(args, "--user=root")
	}
	return args
}

// mysqlInstalled returns the program that integration/install.sh has unpacked. It runs as our user, because it may be
// in our home directory.
func mysqlInstalled() (program string, owner account, err error) {
	root, err := unpacked("mysql", mysqlEnv, "REDRIVE_MYSQL", "mysql", ".complete")
	return filepath.Join(root, "mysqld"), account{}, err
}

var sharedMySQL lazy[*MySQLServer]

// SharedMySQL returns the MySQL that all tests of the process share. Use Database to separate tests.
func SharedMySQL(t testing.TB) *MySQLServer {
	t.Helper()
	// MariaDB's default: with MySQL's 64 MiB, tests with messages of the largest size would be too expensive.
	return mysqlItself.shared(t, &sharedMySQL, MySQLConfig{Args: []string{"--max-allowed-packet=16M"}})
}

// MySQL starts a MySQL for this test only, and stops it at the end of the test.
func MySQL(t testing.TB, cfg MySQLConfig) *MySQLServer {
	t.Helper()
	return own(t, cfg, StartMySQL)
}

// StartMySQL creates an empty data directory and starts a MySQL with it. The caller must close it.
func StartMySQL(ctx context.Context, cfg MySQLConfig) (*MySQLServer, error) {
	return mysqlItself.start(ctx, cfg)
}

// MySQLDSN converts mysql://user:password@host:port/database?parseTime=true to a DSN for Go's MySQL driver. Times are
// parsed unless the URL disables that.
func MySQLDSN(rawURL string) (string, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "mysql" {
		return "", errors.New("services: not a mysql:// URL")
	}
	params := u.Query()
	if !params.Has("parseTime") {
		params.Set("parseTime", "true")
	}
	password, _ := u.User.Password()
	return fmt.Sprintf("%s:%s@tcp(%s)%s?%s", u.User.Username(), password, u.Host, u.EscapedPath(), params.Encode()), nil
}
