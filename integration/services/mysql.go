package services

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// mysqlEnv names a running MySQL.
const mysqlEnv = "TEST_MYSQL_URL"

var mysqlItself = mysqlProduct{
	name:      "mysql",
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
