package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/amqpfault"
	"github.com/redrive-go/redrive/internal/wait"
)

// dialTimeout bounds the TCP, TLS and AMQP handshakes of one attempt to connect.
const dialTimeout = 10 * time.Second

// connection keeps one connection to the broker and replaces it when it breaks. amqp091-go's own recovery stays off: it
// restores channels with state that the broker no longer has, such as confirms that will never arrive.
type connection struct {
	url    string
	name   string // shown on the management page
	logger *slog.Logger

	life  context.Context // ends with close
	end   context.CancelFunc
	tasks sync.WaitGroup // attempts and watchers

	mu       sync.Mutex
	conn     *amqp.Connection
	wire     *coalescing // the connection that conn writes to
	attempt  *attempt    // the current attempt to connect, if any
	failures int         // in a row
	channels map[*amqp.Channel]struct{}
	blocked  *blocked // nil while the broker accepts publications
}

// attempt to connect, which several callers may await.
type attempt struct {
	done chan struct{}
	err  error // once done is closed
}

// blocked is the state between connection.blocked and connection.unblocked.
type blocked struct {
	reason string
	over   chan struct{} // closed by unblocked, or by the end of the connection
}

func newConnection(url, name string, logger *slog.Logger) *connection {
	life, end := context.WithCancel(context.Background())
	return &connection{url: url, name: name, logger: logger, life: life, end: end, channels: map[*amqp.Channel]struct{}{}}
}

// connection returns the live connection. Without one it waits for attempts to connect, which follow each other with
// growing pauses, until ctx ends.
func (l *connection) connection(ctx context.Context) (*amqp.Connection, error) {
	last := errors.New("still connecting")
	for {
		conn, try, err := l.liveOrAttempt()
		if try == nil {
			return conn, err
		}
		select {
		case <-try.done:
			last = cmp.Or(try.err, last)
		case <-ctx.Done():
			return nil, fmt.Errorf("rabbitmq: no connection: %w (%w)", last, context.Cause(ctx))
		}
	}
}

// connectOnce is connection with a single attempt, for Open and Ping.
func (l *connection) connectOnce(ctx context.Context) error {
	_, try, err := l.liveOrAttempt()
	if try == nil {
		return err
	}
	select {
	case <-try.done:
		return try.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// liveOrAttempt returns the live connection, or the current attempt, or an error.
func (l *connection) liveOrAttempt() (*amqp.Connection, *attempt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.life.Err() != nil {
		return nil, nil, brokers.ErrClosed
	}
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil, nil
	}
	if l.attempt == nil {
		l.attempt = &attempt{done: make(chan struct{})}
		try, delay := l.attempt, pause(l.failures)
		l.tasks.Go(func() { l.connect(try, delay) })
	}
	return nil, l.attempt, nil
}

// pause grows from zero over 100 ms to 5 s with consecutive failures.
func pause(failures int) time.Duration {
	return wait.Backoff{First: 100 * time.Millisecond, Longest: 5 * time.Second}.After(failures)
}

func (l *connection) connect(try *attempt, delay time.Duration) {
	_ = wait.For(l.life, delay) // dial fails when life has ended
	l.mu.Lock()
	first := l.conn == nil
	l.mu.Unlock()
	conn, wire, err := l.dial(first)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.attempt = nil
	switch {
	case l.life.Err() != nil:
		try.err = brokers.ErrClosed
		if err == nil {
			l.tasks.Go(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // it was never used
		}
	case err != nil:
		l.failures++
		try.err = err
		if l.conn == nil {
			break // Open, or the first Subscribe, still waits for the error
		}
		l.logger.Warn("rabbitmq: cannot connect", "connection", l.name, "failures", l.failures, "error", err)
	default:
		l.failures = 0
		l.conn, l.wire = conn, wire
		l.blocked = nil
		l.tasks.Go(func() { l.watch(conn) })
	}
	close(try.done)
}

// dial connects. It encrypts the connection itself, because filterHeaders must see what amqp091-go reads in the clear.
// first means that no connection has succeeded yet, so the parameters of the URL may be wrong.
func (l *connection) dial(first bool) (*amqp.Connection, *coalescing, error) {
	uri, err := amqp.ParseURI(l.url)
	if err != nil {
		return nil, nil, err
	}
	encrypted := uri.Scheme == SchemeTLS
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName(l.name)
	var wire *coalescing
	var in *headerFilter
	conn, err := amqp.DialConfig("amqp"+strings.TrimPrefix(l.url, uri.Scheme), amqp.Config{
		Properties: properties,
		Heartbeat:  10 * time.Second,
		Locale:     "en_US",
		Dial: func(network, _ string) (net.Conn, error) {
			address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
			conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(l.life, network, address)
			if err != nil {
				return nil, err
			}
			wire = coalesce(conn, writeTimeout)
			conn = wire
			// amqp091-go removes the deadline after the handshake.
			if err = conn.SetDeadline(time.Now().Add(dialTimeout)); err == nil && encrypted {
				conn, err = encrypt(l.life, conn, &uri)
			}
			if err != nil {
				_ = wire.Close() // the error is the one to report
				return nil, err
			}
			in = filterHeaders(conn)
			return in, nil
		},
	})
	if err != nil {
		return nil, nil, explainHandshake(err, handshake{
			encrypted:   encrypted,
			answeredTLS: in != nil && in.alert.Load(),
			anonymous:   first && uri.CertFile == "",
		})
	}
	return conn, wire, nil
}

// watch follows connection.blocked until conn ends.
func (l *connection) watch(conn *amqp.Connection) {
	ended := conn.NotifyClose(make(chan *amqp.Error, 1))
	for blocking := range conn.NotifyBlocked(make(chan amqp.Blocking, 8)) {
		l.mu.Lock()
		l.unblock()
		if blocking.Active && l.conn == conn {
			l.blocked = &blocked{reason: blocking.Reason, over: make(chan struct{})}
			l.logger.Warn("rabbitmq: the broker accepts no messages for now", "connection", l.name, "reason", blocking.Reason)
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	if l.conn == conn {
		l.unblock()
	}
	l.mu.Unlock()
	if e := <-ended; e != nil {
		l.logger.Warn("rabbitmq: connection lost", "connection", l.name, "error", e)
	}
}

// unblock ends the blocked state, if any. The caller holds mu.
func (l *connection) unblock() {
	if l.blocked != nil {
		close(l.blocked.over)
		l.blocked = nil
	}
}

// whyBlocked returns why the broker accepts no publications, or nil if it does.
func (l *connection) whyBlocked() *blocked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked
}

// awaitUnblocked waits while the broker has blocked the connection.
func (l *connection) awaitUnblocked(ctx context.Context) error {
	for {
		b := l.whyBlocked()
		if b == nil {
			return nil
		}
		select {
		case <-b.over:
		case <-ctx.Done():
			return fmt.Errorf("rabbitmq: %w (%s): %w", ErrBlocked, b.reason, context.Cause(ctx))
		}
	}
}

// channel opens a channel on the live connection. It also returns the connection and its writer.
func (l *connection) channel(ctx context.Context) (*amqp.Channel, *amqp.Connection, *coalescing, error) {
	conn, err := l.connection(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	var ch *amqp.Channel
	err = call(ctx, conn, func() (err error) {
		ch, err = conn.Channel()
		return err
	}, func() error { return ch.Close() })
	if err != nil {
		return nil, nil, nil, fmt.Errorf("rabbitmq: open a channel: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != conn {
		return nil, nil, nil, fmt.Errorf("rabbitmq: open a channel: %w: %w", driver.ErrTemporary, errConnectionLost)
	}
	maps.DeleteFunc(l.channels, isClosed)
	l.channels[ch] = struct{}{}
	return ch, conn, l.wire, nil
}

// counts returns the numbers of open connections and channels.
func (l *connection) counts() (connections, channels int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil || l.conn.IsClosed() {
		return 0, 0
	}
	maps.DeleteFunc(l.channels, isClosed)
	return 1, len(l.channels)
}

func isClosed(ch *amqp.Channel, _ struct{}) bool { return ch.IsClosed() }

// close closes the connection and waits for its goroutines. Nothing depends on the closing handshake: acks and confirms
// were awaited on their channels, and a broker that is down or frozen does not answer it.
func (l *connection) close() {
	l.mu.Lock()
	conn := l.conn
	l.end()
	l.mu.Unlock()
	defer l.tasks.Wait()
	if conn == nil || conn.IsClosed() {
		return
	}
	if err := conn.CloseDeadline(time.Now().Add(2 * time.Second)); err != nil && !errors.Is(err, amqp.ErrClosed) {
		l.logger.Warn("rabbitmq: the broker did not answer the close of the connection", "connection", l.name, "error", err)
	}
}

// answerTimeout is how long the broker may take to answer an AMQP method whose caller no longer waits for it.
const answerTimeout = 10 * time.Second

var errNoAnswer = errors.New("the broker does not answer")

// call runs an AMQP method that waits for an answer. amqp091-go has no timeout for these, and RabbitMQ may never
// answer: declaring a quorum queue without a leader hangs. If ctx ends first, call returns errNoAnswer. late, if it is
// not nil, then releases what the method has used, when its answer comes. Without one for answerTimeout the connection
// is closed, because nothing else makes amqp091-go return; not earlier, because others use it. After errNoAnswer the
// method is still running: do not read what it writes, and do not use its channel.
func call(ctx context.Context, conn *amqp.Connection, method, late func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- method() }()
	select {
	case err := <-answer:
		if err != nil && isTemporary(err, conn) {
			return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
		}
		return err
	case <-ctx.Done():
	}
	go func() {
		silence := time.AfterFunc(answerTimeout, func() { _ = conn.CloseDeadline(time.Now()) }) // the deadline has passed
		defer silence.Stop()
		if err := <-answer; err == nil && late != nil { // an error has closed the channel
			_ = late()
		}
	}()
	return fmt.Errorf("%w: %w", errNoAnswer, context.Cause(ctx))
}

// encrypt wraps conn in TLS with the files and the server name of the broker's URL.
func encrypt(ctx context.Context, conn net.Conn, uri *amqp.URI) (net.Conn, error) {
	roots, err := rootsOf(uri)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{ServerName: cmp.Or(uri.ServerName, uri.Host), RootCAs: roots, MinVersion: tls.VersionTLS12}
	if uri.CertFile != "" && uri.KeyFile != "" {
		certificate, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read certfile and keyfile: %w", err)
		}
		cfg.Certificates = []tls.Certificate{certificate}
	}
	client := tls.Client(conn, cfg)
	return client, client.HandshakeContext(ctx)
}

// rootsOf reads the authorities that the broker's URL trusts; nil stands for those of the system.
func rootsOf(uri *amqp.URI) (*x509.CertPool, error) {
	if uri.CACertFile == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(uri.CACertFile)
	if err != nil {
		return nil, fmt.Errorf("read cacertfile: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return roots, nil
}

// handshake describes a connection that failed before it was open.
type handshake struct {
	encrypted   bool
	answeredTLS bool // the server answered with a TLS alert
	anonymous   bool // the first attempt with this URL, which names no certificate
}

// explainHandshake adds a remedy to the error of a connection that failed before it was open. A broker that is
// restarting resets connections too: without a sign of TLS there is no hint. The parameters are those of RabbitMQ's
// URIs.
func explainHandshake(err error, h handshake) error {
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	var hint string
	switch {
	case authority:
		hint = "the authority of the server's certificate is not trusted here: put its certificate into a file and add " +
			"cacertfile=<file> to the URL, or correct the file that cacertfile names"
	case host:
		hint = "the server's certificate is for another name: connect by a name that it is for, or add " +
			"server_name_indication=<that name> to the URL"
	case record:
		hint = "this port does not speak TLS: use the broker's TLS port (5671), or amqp:// on this one"
	case h.answeredTLS:
		hint = "this port speaks TLS: use amqps:// with it, or the broker's AMQP port (5672)"
	case h.refusedCertificate(err):
		hint = "the server ended the connection after the TLS handshake: if it asks its clients for certificates, add " +
			"certfile=<file>&keyfile=<file> of one that it trusts to the URL; its log has the reason"
		err = amqpfault.Connecting(err) // or there is no server behind the one that encrypts
	default:
		return amqpfault.Connecting(err)
	}
	return fmt.Errorf("%w: %s", err, hint)
}

// refusedCertificate reports whether the server seems to have refused the client's certificate, or to miss one. With
// TLS 1.3 it checks that after the handshake, and its verdict may be lost with the connection that it ends.
func (h handshake) refusedCertificate(err error) bool {
	if !h.encrypted {
		return false
	}
	if h.anonymous && errors.Is(err, net.ErrClosed) {
		return true // the client's reader saw the end of the connection first, and closed it before the writer noticed
	}
	exception, ok := errors.AsType[*amqp.Error](err)
	return ok && !exception.Server && (exception.Code == amqp.FrameError || exception.Code == amqp.ChannelError) &&
		(h.anonymous || strings.Contains(exception.Reason, "tls: "))
}
