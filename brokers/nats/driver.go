package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/portable"
)

// Schemes of the URLs that this driver opens.
const (
	Scheme    = "nats"
	SchemeTLS = "nats+tls"
)

func init() {
	brokers.Register(Scheme, Driver{})
	brokers.Register(SchemeTLS, Driver{})
}

// Driver opens nats:// and nats+tls:// URLs. Importing the package registers it in the shared Mux; programs with a
// separate Mux register it there.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return []brokers.Param{
		{
			Name: "declare", Type: brokers.Bool, Default: "true",
			Doc: "Create missing streams and consumers, and change consumers to the configuration.",
		},
		{
			Name: "replicas", Type: brokers.Int, Default: "0", Max: 5,
			Doc: "Replicas of new streams; 0 means 3 on a cluster and 1 otherwise.",
		},
		{
			Name: "max-age", Type: brokers.Duration, Default: "0s", Max: int64(100 * 365 * 24 * time.Hour),
			Doc: "How long a stream keeps messages, handled or not: at least 1h; 0 sets no limit.",
		},
		{
			Name: "ack-wait", Type: brokers.Duration, Default: "30s", Min: int64(time.Second), Max: int64(time.Hour),
			Doc: "Silence after which the server gives the messages of a dead process to another one.",
		},
		{
			Name: "prefetch", Type: brokers.Int, Default: "1", Min: 1, Max: 65535,
			Doc: "Messages that the server sends ahead to one subscription; never fewer than its concurrency.",
		},
		driver.NackPause(),
		driver.CrashLimit(),
		{Name: "credentials", Doc: "File with the user's JWT and seed."},
		{Name: "tls-ca", Doc: "File with the certificates to trust; the system's if not given."},
		{Name: "tls-cert", Doc: "File with the client's certificate."},
		{Name: "tls-key", Doc: "File with the client's key."},
	}
}

// Open implements brokers.Driver. It fails when no server answers, or when JetStream is off.
func (d Driver) Open(ctx context.Context, cfg brokers.Config) (brokers.Broker, error) {
	if age := cfg.Params.Duration("max-age"); age > 0 && age < time.Hour {
		return nil, fmt.Errorf("nats: max-age is %s: unhandled messages would soon be lost; at least 1h, or 0",
			age)
	}
	t, err := dial(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("nats: open %s: %w", brokers.Redact(cfg.URL), err)
	}
	b, err := portable.New(portable.Config{Config: cfg, Params: d.Params(), Transport: t}) //nolint:contextcheck // the broker outlives the context of Open
	if err != nil {
		t.conn.Close()
		return nil, err
	}
	return b, nil
}

func dial(ctx context.Context, cfg brokers.Config) (*transport, error) {
	t := &transport{cfg: cfg, streams: map[*stream]struct{}{}, floors: map[string]floor{}, counted: map[string]struct{}{}}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return nil, errors.New("the URL cannot be read") // the error repeats it, with its password
	}
	// A silent server must leave time for the others: now, and whenever the client reconnects.
	timeout := 5 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		each := time.Until(deadline) / time.Duration(1+strings.Count(u.Host, ","))
		timeout = min(timeout, max(each, time.Second))
	}
	conn, err := nats.Connect(servers(u), append(t.options(u), nats.Timeout(timeout))...)
	if err != nil {
		return nil, notReady(err)
	}
	t.conn = conn
	if limit := conn.MaxPayload(); limit <= reserved {
		conn.Close()
		return nil, fmt.Errorf("the server's max_payload is %d bytes; set it to more than %d, which a failure may add to a "+
			"message", limit, reserved)
	}
	// Otherwise publications that the server never answers would use up the client's limit of unanswered ones.
	if t.js, err = jetstream.New(conn, jetstream.WithPublishAsyncTimeout(cfg.PublishTimeout)); err == nil {
		err = t.Ping(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, notReady(err)
	}
	return t, nil
}

// passing is what a server that is full, stopping or slow says to a new connection. The client keeps only the text.
var passing = regexp.MustCompile(
	`(?i)maximum (account active )?connections exceeded|server shutdown|stale connection|authentication timeout`)

// notReady marks what the client says about a server that is down, and about a cluster that has no leader yet.
func notReady(err error) error {
	if errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || unavailable(err) ||
		passing.MatchString(err.Error()) {
		return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
	}
	return err
}

// servers converts our URL to the client's, without the user, which is set separately.
func servers(u *url.URL) string {
	scheme := "nats://"
	if u.Scheme == SchemeTLS {
		scheme = "tls://"
	}
	return scheme + strings.ReplaceAll(u.Host, ",", ","+scheme)
}

func (t *transport) options(u *url.URL) []nats.Option {
	warn := func(what string, err error) {
		if err != nil {
			t.cfg.Logger.Warn("nats: "+what, "error", err) //nolint:sloglint // the callers' sentences are constants
		}
	}
	options := []nats.Option{
		nats.Name(t.cfg.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.IgnoreAuthErrorAbort(), // otherwise an operator's mistake would end the connection until this process restarts
		nats.PingInterval(5 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(5 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { warn("the connection was lost; reconnecting", err) }),
		nats.ReconnectHandler(func(*nats.Conn) { t.reconnected() }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { warn("the client reports an error", err) }),
	}
	if password, ok := u.User.Password(); ok {
		options = append(options, nats.UserInfo(u.User.Username(), password))
	} else if name := u.User.Username(); name != "" {
		options = append(options, nats.Token(name))
	}
	if file := t.cfg.Params.String("credentials"); file != "" {
		options = append(options, nats.UserCredentials(file))
	}
	if file := t.cfg.Params.String("tls-ca"); file != "" {
		options = append(options, nats.RootCAs(file))
	}
	if file := t.cfg.Params.String("tls-cert"); file != "" {
		options = append(options, nats.ClientCert(file, t.cfg.Params.String("tls-key")))
	}
	return options
}
