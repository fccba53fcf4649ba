package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"reflect"
)

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
	u, err := url.Parse(s.DSN)
	if err != nil || u.Query().Has(execMode) || !behindPooler(ctx, db) {
		return db, nil //nolint:nilerr // left to the driver
	}
	query := u.RawQuery
	if query != "" {
		query += "&"
	}
	u.RawQuery = query + execMode + "=" + poolerMode
	s.DSN = u.String()
	_ = db.Close() // nothing ran on it
	return s.Open(p)
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
	result, err := conn.ExecContext(ctx, fmt.Sprintf("SELECT 1 WHERE pg_backend_pid() = %d", known))
	if err != nil {
		return false
	}
	same, err := result.RowsAffected()
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

// Advise adds advice about poolers to an error of a pool that the application opened.
func (d Dialect) Advise(err error) error {
	if d == PostgreSQL && IsCode(err, "42P05", "26000") {
		return fmt.Errorf("%w: a pooler in transaction mode loses prepared statements: add %s=%s to the DSN", err, execMode,
			poolerMode)
	}
	return err
}
