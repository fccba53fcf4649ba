package services

import (
	"context"
	"testing"
)

// mariadbEnv names a running MariaDB.
const mariadbEnv = "TEST_MARIADB_URL"

var mariadb = mysqlProduct{
	name: "mariadb",
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
