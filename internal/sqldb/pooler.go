package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"reflect"
)

// execMode is pgx's parameter for how it runs statements.
const execMode = "default_query_exec_mode"

// poolerMode prepares no statement under a name. A pooler that gives each transaction another session, as pgbouncer
// does in its transaction mode, loses names, or finds those of another client.
const poolerMode = "cache_describe"

// Connect is Open for a pool that is used at once: it makes a connection to PostgreSQL and finds out whether
// there is a pooler in front of it. If there is one, and the URL does not set how statements are run, this pool and
// those that are opened later run them in the mode that a pooler supports. Other failures are left to the first use of
// the pool.
func (s *Source) Connect(ctx context.Context, p Pool) (*sql.DB, error) {
	db, err := s.Open(p)
	if err != nil || s.Dialect != PostgreSQL {
		return db, err
	}
	u, err := url.Parse(s.DSN)
	if err != nil || u.Query().Has(execMode) || !behindPooler(ctx, db) {
		return db, nil //nolint:nilerr // the driver reads the DSN in its way
	}
	query := u.RawQuery
	if query != "" {
		query += "&"
	}
	u.RawQuery = query + execMode + "=" + poolerMode
	s.DSN = u.String()
	_ = db.Close() // it has done nothing
	return s.Open(p)
}

// behindPooler reports whether the server's process that answers is another one than the one that a connection of pgx
// learned at its start: a pooler tells one that it has made up. The query has no parameters, so that nothing is
// prepared for it.
func behindPooler(ctx context.Context, db *sql.DB) bool {
	conn, err := db.Conn(ctx)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	var told uint64
	err = conn.Raw(func(raw any) error {
		told = processOf(raw)
		return nil
	})
	if err != nil || told == 0 {
		return false
	}
	result, err := conn.ExecContext(ctx, fmt.Sprintf("SELECT 1 WHERE pg_backend_pid() = %d", told))
	if err != nil {
		return false
	}
	same, err := result.RowsAffected()
	return err == nil && same == 0
}

// processOf is the id of the server's process behind a connection of pgx, 0 for another driver's. It goes by the
// methods' shapes, because naming the types would make every program link pgx:
//
//	(*stdlib.Conn).Conn() *pgx.Conn
//	(*pgx.Conn).PgConn() *pgconn.PgConn
//	(*pgconn.PgConn).PID() uint32
//
// Their names are constants: a method that is looked up by a name which the linker does not know makes it keep every
// exported method of the program, a sixth of the size of examples/orders.
func processOf(raw any) uint64 {
	value := returned(reflect.ValueOf(raw).MethodByName("Conn"))
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

// returned is what a method without parameters returns, and invalid for one that is not there or is another's.
func returned(method reflect.Value) (value reflect.Value) {
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return value
	}
	return method.Call(nil)[0]
}

// Advise adds to an error of a pool that somebody else has opened what to do about a pooler.
func (d Dialect) Advise(err error) error {
	if d == PostgreSQL && IsCode(err, "42P05", "26000") {
		return fmt.Errorf("%w: a pooler in transaction mode loses prepared statements: add %s=%s to the DSN", err, execMode,
			poolerMode)
	}
	return err
}
