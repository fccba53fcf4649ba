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
	"sync"
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

const (
	// hearTimeout bounds the wait for our own notification.
	hearTimeout = 5 * time.Second
	// hearAgain is when to try again after it did not arrive.
	hearAgain = 10 * time.Minute
)

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
		if time.Since(began) > time.Minute {
			failures = 0
		}
		failures++
		pause := listening.After(failures)
		if errors.Is(err, errNotHeard) {
			pause = hearAgain
		}
		_ = wait.For(ctx, pause)
	}
}

func (l *listener) listen(ctx context.Context) error {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
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
	_, err := l.db.ExecContext(ctx, "SELECT pg_notify($1, $2)", channel, token)
	for heard := ""; heard != token && err == nil; {
		if heard, err = next(ctx); err != nil && ctx.Err() != nil {
			return errNotHeard
		}
	}
	return err
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

// noticeGap is the shortest time between two notifications of one topic: PostgreSQL commits notifying transactions one
// at a time, and each wakes every listener.
const noticeGap = 10 * time.Millisecond

// notices decides which publishes notify on commit: the first one to a topic does, so that an idle consumer starts at
// once, and those that follow within noticeGap share one notification at the end of the gap. It is safe for concurrent
// use.
type notices struct {
	send func(topic string, delay time.Duration)

	mu     sync.Mutex
	gaps   map[string]*gap
	ending sync.WaitGroup
	closed bool
}

// gap follows a notification.
type gap struct {
	another bool // a notification is due at its end
	delay   time.Duration
}

func newNotices(send func(topic string, delay time.Duration)) *notices {
	return &notices{send: send, gaps: map[string]*gap{}}
}

// publish reports whether a publish to topic that starts now should notify on its own.
func (n *notices) publish(topic string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gaps[topic] != nil {
		return false
	}
	n.begin(topic)
	return true
}

// schedule sends a delayed notification for a publish that did not notify.
func (n *notices) schedule(topic string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	g := n.gaps[topic]
	if g == nil {
		g = n.begin(topic) // the publish took longer than the gap
	}
	if !g.another || delay < g.delay {
		g.another, g.delay = true, delay
	}
}

func (n *notices) begin(topic string) *gap {
	g := &gap{}
	if n.closed {
		return g // consumers find the row by polling
	}
	n.gaps[topic] = g
	n.ending.Add(1)
	time.AfterFunc(noticeGap, func() {
		defer n.ending.Done()
		n.mu.Lock()
		delete(n.gaps, topic)
		if g.another {
			n.begin(topic)
		}
		n.mu.Unlock()
		if g.another {
			n.send(topic, g.delay)
		}
	})
	return g
}

// close sends pending notifications, and waits for them.
func (n *notices) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.ending.Wait()
}
