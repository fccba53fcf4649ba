package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// bounded opens connections of which the server ends a transaction that does nothing for a time. A process that is
// frozen in the middle of one, because somebody stopped it or its machine is suspended, would keep its row locks for as
// long as the server keeps the connection, and every other process would wait for them.
type bounded struct {
	driver.Connector
	statement func(driver.Conn) string
}

// Connect opens a connection and sets its bound.
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

// boundIdle is db, or a pool in its place whose transactions may be idle for so long at most.
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

// postgresIdle sets the session's bound, unless the URL, the role or the database has one or the server's is shorter.
// It is no parameter of the connection's start, which pgbouncer refuses. Nothing is set where the process that answers
// is not the one that the driver knows: a pooler gives the session to other clients too.
func postgresIdle(process uint64, most time.Duration) string {
	if process == 0 {
		return ""
	}
	return fmt.Sprintf("SELECT set_config(name, '%d', false) FROM pg_settings"+
		" WHERE name = 'idle_in_transaction_session_timeout' AND pg_backend_pid() = %d"+
		" AND source NOT IN ('client', 'user', 'database', 'database user')"+
		" AND setting::bigint NOT BETWEEN 1 AND %[1]d", most.Milliseconds(), process)
}

// mysqlIdle sets the session's bound, unless the server's is shorter. MariaDB has one for transactions. MySQL has one
// for sessions: there a connection of the pool that is not used must be closed earlier (see [Pool]), and the one that
// holds a lock goes without. Either server runs the comment that is meant for it.
func mysqlIdle(most time.Duration) string {
	return fmt.Sprintf("SET @redrive_idle = %d"+
		" /*M!100300 , SESSION idle_transaction_timeout ="+
		" IF(@@idle_transaction_timeout BETWEEN 1 AND %[1]d, @@idle_transaction_timeout, %[1]d) */"+
		" /*!80000 , SESSION wait_timeout = CAST(LEAST(@@wait_timeout, %[1]d) AS SIGNED) */", int(most.Seconds()))
}
