package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// everyRow is the value of sql_select_limit without a limit.
const everyRow = "18446744073709551615"

// setMySQLSession adds the variables of a session to a DSN's parameters. An operator may change their values on the
// server, and rows would be lost without an error: without autocommit, or with chained transactions, nothing that we
// confirmed is committed, and a limit hides rows from our queries. Other character sets than utf8mb4 lack characters:
// the error texts of some messages could never be stored.
func setMySQLSession(params url.Values) {
	params.Set("autocommit", "1")
	params.Set("charset", "utf8mb4")
	params.Set("completion_type", "0")
	params.Set("sql_select_limit", everyRow)
	// The server ends a connection on which it gets a larger packet; with 0 the driver asks for its limit.
	params.Set("maxAllowedPacket", cmp.Or(params.Get("maxAllowedPacket"), "0"))
	// Without strict mode, the server truncates values silently. This also disables NO_BACKSLASH_ESCAPES and ANSI_QUOTES.
	params.Set("sql_mode", cmp.Or(params.Get("sql_mode"), "'STRICT_ALL_TABLES'"))
	// After a failover, the driver replaces the connections to the server that is now read-only.
	params.Set("rejectReadOnly", cmp.Or(params.Get("rejectReadOnly"), "true"))
}

// strictMode matches the modes in which MySQL does not truncate what is too long.
var strictMode = regexp.MustCompile(`STRICT_(ALL|TRANS)_TABLES|TRADITIONAL`)

// CheckSession refuses an unknown dialect, and a pool of the application whose sessions would lose or truncate rows
// without an error, or could never store some texts. The pools of a Source need no check.
func (d Dialect) CheckSession(ctx context.Context, db *sql.DB) error {
	if d != MySQL {
		return d.Validate()
	}
	var mode string
	var commits, whole, unicode bool
	err := db.QueryRowContext(ctx, "SELECT concat(@@sql_mode, ' '), @@autocommit = 1 AND @@completion_type = 'NO_CHAIN', "+
		"@@sql_select_limit = "+everyRow+", @@character_set_client = 'utf8mb4'").Scan(&mode, &commits, &whole, &unicode)
	switch {
	case err != nil:
		return fmt.Errorf("read the session's variables: %w", err)
	case !strictMode.MatchString(mode):
		return errors.New("the connections are not strict, and would cut what is too long: add " +
			"sql_mode='STRICT_ALL_TABLES' to the DSN")
	case !commits:
		return errors.New("the connections would not commit what is stored: add autocommit=1&completion_type=0 to the DSN")
	case !whole:
		return errors.New("the connections would not read all rows: add sql_select_limit=" + everyRow + " to the DSN")
	case !unicode:
		return errors.New("the connections could not store every character: add charset=utf8mb4 to the DSN")
	}
	return nil
}

// IdleTx is the [Pool]'s IdleTx for transactions of ours: even on a busy machine they do little between statements.
const IdleTx = 30 * time.Second

// bounded opens connections on which the server aborts idle transactions. A process that is frozen in the middle of
// one, by SIGSTOP or because its machine is suspended, would otherwise keep its row locks as long as the server keeps
// the connection, and every other process would wait for them. A server that accepts connections and says nothing is
// not waited for without end either: the drivers have no limit.
type bounded struct {
	driver.Connector
	statement func(driver.Conn) string
}

// connectTime limits how long opening a connection takes.
const connectTime = 30 * time.Second

// Connect opens a connection and sets its limit.
func (b *bounded) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := b.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	if statement := b.statement(conn); statement != "" {
		if err := exec(ctx, conn, statement); err != nil {
			return nil, errors.Join(fmt.Errorf("bound idle transactions: %w", err), conn.Close())
		}
	}
	return conn, nil
}

// bound returns db, or a pool in its place that limits connecting and, unless most is 0, how long transactions idle.
func (d Dialect) bound(db *sql.DB, dsn string, most time.Duration) (*sql.DB, error) {
	statement := map[Dialect]func(driver.Conn) string{
		PostgreSQL: func(conn driver.Conn) string { return postgresIdle(processOf(conn), most) },
		MySQL:      func(driver.Conn) string { return mysqlIdle(most) },
	}[d]
	if most == 0 {
		statement = func(driver.Conn) string { return "" }
	}
	opener, ok := db.Driver().(driver.DriverContext)
	if !ok {
		return db, nil
	}
	connector, err := opener.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	_ = db.Close() // it has no connection yet
	return sql.OpenDB(&bounded{connector, statement}), nil
}

// postgresIdle sets the session's limits, for a transaction that is idle and for a result that the process does not
// read, unless the URL, the role or the database sets one or the server's is shorter. They are not startup parameters,
// because pgbouncer rejects those. Nothing is set when the backend that answers is not the one that the driver knows: a
// pooler shares the session with other clients.
func postgresIdle(process uint64, most time.Duration) string {
	if process == 0 {
		return ""
	}
	return fmt.Sprintf("SELECT set_config(name, '%d', false) FROM pg_settings"+
		" WHERE name IN ('idle_in_transaction_session_timeout', 'tcp_user_timeout') AND pg_backend_pid() = %d"+
		" AND source NOT IN ('client', 'user', 'database', 'database user')"+
		" AND setting::bigint NOT BETWEEN 1 AND %[1]d", most.Milliseconds(), process)
}

// mysqlIdle sets the session's limit, unless the server's is shorter. MariaDB has one for transactions. MySQL has one
// for sessions: there the pool must close unused connections earlier (see [Pool]), and the connection that holds a lock
// has no limit. Each server executes only its own comment.
func mysqlIdle(most time.Duration) string {
	return fmt.Sprintf("SET @redrive_idle = %d"+
		" /*M!100300 , SESSION idle_transaction_timeout ="+
		" IF(@@idle_transaction_timeout BETWEEN 1 AND %[1]d, @@idle_transaction_timeout, %[1]d) */"+
		" /*!80000 , SESSION wait_timeout = CAST(LEAST(@@wait_timeout, %[1]d) AS SIGNED) */", int(most.Seconds()))
}

// execMode is pgx's parameter for how statements are executed.
const execMode = "default_query_exec_mode"

// poolerMode prepares no named statements. Behind a pooler that gives each transaction another session, such as
// pgbouncer in transaction mode, names are lost, or belong to another client.
const poolerMode = "cache_describe"

// Connect is Open for a pool that is used at once: on PostgreSQL it makes a connection and finds out whether there is a
// pooler in front of the server. If so, and the URL does not set how statements are executed, this pool and later ones
// use a mode that a pooler supports. Other failures surface at the first use of the pool.
func (s *Source) Connect(ctx context.Context, p Pool) (*sql.DB, error) {
	db, err := s.Open(p)
	if err != nil || s.Dialect != PostgreSQL {
		return db, err
	}
	dsn := withParam(s.DSN, execMode, poolerMode)
	if dsn == s.DSN || !behindPooler(ctx, db) {
		return db, nil
	}
	s.DSN = dsn
	_ = db.Close() // nothing ran on it
	return s.Open(p)
}

// withParam adds a parameter to a DSN of PostgreSQL, unless the DSN has it or is one that only the driver can read.
func withParam(dsn, name, value string) string {
	u, err := url.Parse(dsn)
	if err != nil || u.Query().Has(name) {
		return dsn
	}
	u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+name+"="+value, "&")
	return u.String()
}

// behindPooler reports whether the backend that answers differs from the one that pgx learned when it connected: a
// pooler reports a made-up one. The query has no parameters, so that nothing is prepared for it.
func behindPooler(ctx context.Context, db *sql.DB) bool {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	var known uint64                    // to pgx
	err = conn.Raw(func(raw any) error {
		known = processOf(raw)
		return nil
	})
	if err != nil || known == 0 {
		return false
	}
	same, err := Changed(conn.ExecContext(ctx, fmt.Sprintf("SELECT 1 WHERE pg_backend_pid() = %d", known)))
	return err == nil && same == 0
}

// PgxConn is the *pgx.Conn of a connection that sql.Conn.Raw passes; invalid for another driver's. Its methods are
// looked up by name, because naming the types would make every program link pgx:
//
//	(*stdlib.Conn).Conn() *pgx.Conn
//
// The names are constants: looking a method up by a name unknown to the linker makes it keep every exported method of
// the program, a sixth of the size of examples/orders.
func PgxConn(raw any) reflect.Value { return returned(reflect.ValueOf(raw).MethodByName("Conn")) }

// processOf is the backend's process id of a pgx connection, 0 for another driver's:
//
//	(*pgx.Conn).PgConn() *pgconn.PgConn
//	(*pgconn.PgConn).PID() uint32
func processOf(raw any) uint64 {
	value := PgxConn(raw)
	if value.IsValid() {
		value = returned(value.MethodByName("PgConn"))
	}
	if value.IsValid() {
		value = returned(value.MethodByName("PID"))
	}
	if !value.IsValid() || !value.CanUint() {
		return 0
	}
	return value.Uint()
}

// returned calls a method without parameters. Its result is invalid if the method is missing or has another signature.
func returned(method reflect.Value) (value reflect.Value) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return value
	}
	return method.Call(nil)[0]
}

// Advise adds advice to an error of opening: about poolers, and about roles that may not create or use the tables.
func (d Dialect) Advise(err error) error {
	switch {
	case d == PostgreSQL && IsCode(err, "42P05", "26000"):
		return fmt.Errorf("%w: a pooler in transaction mode loses prepared statements: add %s=%s to the DSN", err, execMode,
			poolerMode)
	case IsCode(err, "42501", "3F000", "1044", "1142"):
		return fmt.Errorf("%w: the role lacks a right: grant it CREATE, or create the tables with another role (dead "+
			"letters: \"redrive migrate\"), grant this one SELECT, INSERT, UPDATE and DELETE on them and USAGE of their "+
			"schema and sequences, and open with migrate=false", err)
	}
	return err
}
