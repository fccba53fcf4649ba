package sqlqueue

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/internal/wait"
)

// listener receives PostgreSQL's notifications on a separate connection. Consumers poll while it is down.
type listener struct {
	db      *sql.DB
	watcher *watcher
	log     *slog.Logger
	up      atomic.Bool
}

// errNotHeard means that this process did not receive its own notification.
var errNotHeard = errors.New(
	"this process does not receive its own notification, as behind a pooler in transaction mode")

// Bounds of hearing, and of the pause before the next attempt.
const (
	hearTimeout = 5 * time.Second
	hearAgain   = 10 * time.Minute
)

// errCannotListen means that the driver cannot wait for notifications.
var errCannotListen = errors.New("the driver cannot wait for notifications")

// listening are the pauses between two listening connections.
var listening = wait.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// run listens until ctx ends, and reconnects when the connection breaks. It gives up on drivers other than pgx.
func (l *listener) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := l.listen(ctx)
		l.up.Store(false)
		if errors.Is(err, errCannotListen) || ctx.Err() != nil {
			return
		}
		l.log.WarnContext(ctx, "sqlqueue: listening was interrupted, polling meanwhile", "error", err)
		if errors.Is(err, errNotHeard) {
			if wait.For(ctx, hearAgain) != nil {
				return
			}
			continue
		}
		if time.Since(began) > time.Minute {
			failures = 0
		}
		failures++
		if wait.For(ctx, listening.After(failures)) != nil {
			return
		}
	}
}

func (l *listener) listen(ctx context.Context) (err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ignoreClosed(conn.Close())) }()
	if _, err := conn.ExecContext(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	// driver.ErrBadConn makes database/sql discard the connection: in the pool it would keep listening.
	var failure error
	err = conn.Raw(func(raw any) error {
		failure = l.receive(ctx, raw)
		return driver.ErrBadConn
	})
	if failure != nil {
		return failure
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, sql.ErrConnDone) || errors.Is(err, driver.ErrBadConn) {
		return nil
	}
	return err
}

func (l *listener) receive(ctx context.Context, raw any) error {
	next, err := notifications(raw)
	if err != nil {
		return err
	}
	if err := l.awaitOwn(ctx, next); err != nil {
		return err
	}
	l.up.Store(true)
	l.watcher.wakeIf(func(*reader) bool { return true }, 0) // for messages published before LISTEN
	for {
		payload, err := next(ctx)
		if err != nil {
			return err
		}
		id, delay, _ := strings.Cut(payload, " ")
		queue, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			continue // not one of ours
		}
		us, err := strconv.ParseInt(delay, 10, 64)
		if err != nil {
			us = 0
		}
		l.watcher.wake(queue, time.Duration(us)*time.Microsecond)
	}
}

// awaitOwn waits for its own notification, sent on another connection: LISTEN also succeeds where none ever arrives.
func (l *listener) awaitOwn(ctx context.Context, next func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, hearTimeout)
	defer cancel()
	token := "hear " + strconv.FormatInt(rand.Int64(), 36) //nolint:gosec // G404: no secret
	sent := make(chan error, 1)
	go func() {
		_, err := l.db.ExecContext(ctx, "SELECT pg_notify('"+channel+"', '"+token+"')") //nolint:gosec // G202: a constant and a number of ours
		sent <- err
	}()
	var err error
	for heard := ""; heard != token && err == nil; {
		heard, err = next(ctx)
	}
	late := ctx.Err() != nil
	cancel()
	failed := <-sent
	switch {
	case err == nil:
		return nil
	case late:
		return errNotHeard
	default:
		return errors.Join(err, failed)
	}
}

// notifications finds pgx's WaitForNotification behind a database/sql connection. It matches the method's signature
// rather than its types, see [sqldb.PgxConn]:
//
//	(*pgx.Conn).WaitForNotification(context.Context) (*pgconn.Notification, error)
//
// A driver with other methods, including a later pgx, is errCannotListen, and only costs latency.
func notifications(raw any) (func(ctx context.Context) (payload string, err error), error) {
	conn := sqldb.PgxConn(raw)
	if !conn.IsValid() {
		return nil, errCannotListen
	}
	receive := conn.MethodByName("WaitForNotification")
	if !receive.IsValid() {
		return nil, errCannotListen
	}
	shape := receive.Type()
	if shape.NumIn() != 1 || shape.In(0) != reflect.TypeFor[context.Context]() ||
		shape.NumOut() != 2 || shape.Out(1) != reflect.TypeFor[error]() ||
		shape.Out(0).Kind() != reflect.Pointer || shape.Out(0).Elem().Kind() != reflect.Struct {
		return nil, errCannotListen
	}
	payload, ok := shape.Out(0).Elem().FieldByName("Payload")
	if !ok || payload.Type.Kind() != reflect.String {
		return nil, errCannotListen
	}
	return func(ctx context.Context) (string, error) {
		out := receive.Call([]reflect.Value{reflect.ValueOf(ctx)})
		if err, _ := reflect.TypeAssert[error](out[1]); err != nil {
			return "", fmt.Errorf("wait for notification: %w", err)
		}
		return out[0].Elem().FieldByIndex(payload.Index).String(), nil
	}, nil
}
