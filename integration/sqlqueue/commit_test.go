package sqlqueue_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	processed "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// commitProxy forwards connections to a database, until one of them sends a COMMIT: then it cuts connections.
type commitProxy struct {
	net.Listener

	upstream string
	cut      commitCut

	mu      sync.Mutex
	armed   bool
	away    bool
	servers []net.Conn // of all connections
}

// commitCut is what a commitProxy does at a COMMIT.
type commitCut struct {
	before bool // the server does not receive it; otherwise only its answer is lost
	all    bool // connections are cut, not only that of the COMMIT
	away   bool // new ones are closed until heal
}

func newCommitProxy(t *testing.T, upstream string, cut commitCut) *commitProxy {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &commitProxy{Listener: listener, upstream: u.Host, cut: cut}
	var forwarding sync.WaitGroup
	forwarding.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := p.dial(context.WithoutCancel(t.Context()))
			if err != nil {
				_ = client.Close()
				continue
			}
			committing := make(chan struct{})
			forwarding.Go(func() { p.requests(server, client, committing) })
			forwarding.Go(func() { p.answers(client, server, committing) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.cutAll()
		forwarding.Wait()
	})
	return p
}

func (p *commitProxy) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		return nil, errors.New("the test has cut the connections")
	}
	server, err := new(net.Dialer).DialContext(ctx, "tcp", p.upstream)
	if err == nil {
		p.servers = append(p.servers, server)
	}
	return server, err
}

// url is that of the database through the proxy.
func (p *commitProxy) url(direct string) string {
	return strings.Replace(direct, p.upstream, p.Addr().String(), 1)
}

// arm makes the proxy wait for the next COMMIT.
func (p *commitProxy) arm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = true
}

// heal makes the proxy accept connections again.
func (p *commitProxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = false
}

func (p *commitProxy) fires(request []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fires := p.armed && bytes.Contains(bytes.ToUpper(request), []byte("COMMIT"))
	if fires {
		p.armed, p.away = false, p.cut.away
	}
	return fires
}

func (p *commitProxy) cutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, server := range p.servers {
		_ = server.Close() // its client follows
	}
}

// requests forwards what a client sends.
func (p *commitProxy) requests(server, client net.Conn, committing chan<- struct{}) {
	defer func() { _ = server.Close() }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if p.fires(buffer[:n]) {
			if p.cut.before {
				p.end(server)
				return
			}
			close(committing)
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// answers forwards what a server sends, except what answers a COMMIT.
func (p *commitProxy) answers(client, server net.Conn, committing <-chan struct{}) {
	defer func() { _ = client.Close() }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := server.Read(buffer)
		select {
		case <-committing:
			p.end(server)
			return
		default:
		}
		if err != nil {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// end cuts connections, at least that to server.
func (p *commitProxy) end(server io.Closer) {
	if p.cut.all {
		p.cutAll()
	}
	_ = server.Close()
}

// A message whose handler's transaction was committed has been handled, whether the answer arrived or not: it does not
// run again, and is not dead-lettered. Otherwise it runs again. An attempt counts only if it is known to have failed.
func TestInTx_ConnectionCutAtTheCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut      commitCut
		attempts []int
		err      string // of the first
		cause    string // of the end of its context
	}{
		"AnswerLost":               {attempts: []int{1}},
		"AnswerLostInAFullCut":     {cut: commitCut{all: true}, attempts: []int{1}},
		"AnswerLostBeforeAnOutage": {cut: commitCut{all: true, away: true}, attempts: []int{1}, err: "commit: ", cause: unknown},
		"CommitLost":               {cut: commitCut{before: true}, attempts: []int{1, 2}, err: "commit: "},
		"CommitLostInAFullCut":     {cut: commitCut{before: true, all: true}, attempts: []int{1, 2}, err: "commit: "},
		"CommitLostBeforeAnOutage": {
			cut: commitCut{before: true, all: true, away: true}, attempts: []int{1, 1}, err: "commit: ", cause: unknown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, url string) { t.Helper(); cutAtTheCommit(t, url, c.cut, c.attempts, c.err, c.cause) })
		})
	}
}

const unknown = "the outcome of a transaction is unknown"

func cutAtTheCommit(t *testing.T, url string, cut commitCut, attempts []int, failure, cause string) {
	t.Helper()
	db, proxy := openDB(t, url), newCommitProxy(t, url, cut)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id VARCHAR(20))")
	require.NoError(t, err)
	queue := openQueue(t, proxy.url(url))
	messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	pipeline, err := middleware.New(middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(time.Millisecond), DeadLetters: queue, Rescheduler: queue,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	var ran []int
	var failed, ended error // of the last
	handle := pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) {
		attempt, _ := middleware.AttemptFrom(m.Context())
		ran = append(ran, attempt.Number)
		failed = sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO effects VALUES ('m')")
			if len(ran) == 1 {
				proxy.arm()
			}
			return err
		})
		ended = context.Cause(m.Context())
		return nil, failed
	})
	require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("m", payload)))
	for range attempts {
		m := receive(t, messages)
		if _, err := handle(m); err == nil {
			m.Ack()
		} else {
			m.Nack()
		}
		if len(ran) == 1 {
			for i, want := range []string{failure, cause} {
				if got := []error{failed, ended}[i]; want == "" {
					require.NoError(t, got)
				} else {
					require.ErrorContains(t, got, want)
				}
			}
		}
		proxy.heal()
	}
	await.None(t, func() int { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") })
	require.Equal(t, attempts, ran)
	require.Equal(t, 1, count(t, db, "SELECT count(*) FROM effects"))
}

// The same holds for a handler under an idempotency guard, in a transaction of the guard's store.
func TestGuard_ConnectionCutAtTheCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut          commitCut
		runs, failed int // failed are those that count as attempts
	}{
		"AnswerLost":               {runs: 1},
		"AnswerLostBeforeAnOutage": {cut: commitCut{all: true, away: true}, runs: 1},
		"CommitLost":               {cut: commitCut{before: true}, runs: 2, failed: 1},
		"CommitLostBeforeAnOutage": {cut: commitCut{before: true, all: true, away: true}, runs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, url string) { t.Helper(); guardedCut(t, url, c.cut, c.runs, c.failed) })
		})
	}
}

func guardedCut(t *testing.T, url string, cut commitCut, runs, failed int) {
	t.Helper()
	db, proxy := openDB(t, url), newCommitProxy(t, url, cut)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id VARCHAR(20))")
	require.NoError(t, err)
	dialect, _, _ := strings.Cut(url, ":")
	store, err := processed.New(t.Context(), openDB(t, proxy.url(url)), processed.Dialect(dialect))
	require.NoError(t, err)
	guard, err := idempotency.New(idempotency.Config{
		Store: store, Consumer: "billing", Lease: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ran, counted := 0, 0
	handle := guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
		ran++
		return nil, store.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO effects VALUES ('m')")
			if ran == 1 {
				proxy.arm()
			}
			return err
		})
	})
	await.True(t, func() bool {
		_, err := handle(message.NewMessage("m", payload))
		marked, ok := errors.AsType[*middleware.MarkedError](err)
		if err != nil && (!ok || marked.Kind != middleware.KindDefer) {
			counted++
		}
		proxy.heal()
		return err == nil
	})
	require.Equal(t, []int{runs, failed}, []int{ran, counted})
	require.Equal(t, 1, count(t, db, "SELECT count(*) FROM effects"))
}
