package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// bounded opens connections on which the server aborts idle transactions. A process that is frozen in the middle of
// one, by SIGSTOP or because its machine is suspended, would otherwise keep its row locks as long as the server keeps
// the connection, and every other process would wait for them.
type bounded struct {
	driver.Connector
	statement func(driver.Conn) string
}

// Connect opens a connection and sets its limit.
func (b *bounded) Connect(ctx context.Context) (driver.Conn, error) {
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

// boundIdle returns db, or a pool in its place whose transactions may be idle for at most this long.
func (d Dialect) boundIdle(db *sql.DB, dsn string, most time.Duration) (*sql.DB, error) {
	statement := map[Dialect]func(driver.Conn) string{
		PostgreSQL: func(conn driver.Conn) string { return postgresIdle(processOf(conn), most) },
		MySQL:      func(driver.Conn) string { return mysqlIdle(most) },
	}[d]
	opener, ok := db.Driver().(driver.DriverContext)
	if statement == nil || !ok {
		return db, nil
	}
	connector, err := opener.OpenConnector(dsn)
	if err != nil {
		return nil, err
	}
	_ = db.Close() // it has no connection yet
	return sql.OpenDB(&bounded{connector, statement}), nil
}

// postgresIdle sets the session's limit, unless the URL, the role or the database sets one or the server's is shorter.
// It is not a startup parameter, because pgbouncer rejects those. Nothing is set when the backend that answers is not
// the one that the driver knows: a pooler shares the session with other clients.
func postgresIdle(process uint64, most time.Duration) string {
	if process == 0 {
		return ""
	}
	return fmt.Sprintf("SELECT set_config(name, '%d', false) FROM pg_settings"+
		" WHERE name = 'idle_in_transaction_session_timeout' AND pg_backend_pid() = %d"+
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
