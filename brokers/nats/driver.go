package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
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

var _ brokers.DepthReporter = (*transport)(nil)

// maxCounted bounds the counted topics, whose names may come from messages.
const maxCounted = 1000

// counts registers a topic whose messages Depths counts.
func (t *transport) counts(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.counted) < maxCounted {
		t.counted[topic] = struct{}{}
	}
}

// Depths implements brokers.DepthReporter for the topics that this broker knows from subscribing, rescheduling or
// publishing with a delay. For each it counts the delayed messages, those in retry and ready for every group, including
// other processes' groups, and those in the dead letter queue.
func (t *transport) Depths(ctx context.Context) ([]brokers.Depth, error) {
	t.mu.Lock()
	topics := slices.Collect(maps.Keys(t.counted))
	t.mu.Unlock()
	var found []brokers.Depth
	for _, topic := range topics {
		of, err := t.depths(ctx, topic)
		if err != nil && !errors.Is(missing(err), brokers.ErrUnroutable) { // a deleted stream has none
			return nil, fmt.Errorf("nats: depths of %s: %w", topic, err)
		}
		found = append(found, of...)
	}
	return found, nil
}

func (t *transport) depths(ctx context.Context, topic string) ([]brokers.Depth, error) {
	p := placeOf(topic)
	s, err := t.stream(ctx, topic)
	if err != nil {
		return nil, err
	}
	var found []brokers.Depth
	add := func(group string, kind brokers.DepthKind, messages uint64) {
		found = append(found, brokers.Depth{Topic: topic, Group: group, Kind: kind, Messages: int64(messages)}) //nolint:gosec // G115: a count
	}
	delayed, err := t.count(ctx, s, p.schedule("first", "*"))
	if err != nil {
		return nil, err
	}
	add("", brokers.DepthDelayed, delayed)
	groups, err := ask(ctx, func(ctx context.Context) (infos []*jetstream.ConsumerInfo, err error) {
		list := s.ListConsumers(ctx)
		for info := range list.Info() {
			infos = append(infos, info)
		}
		return infos, list.Err()
	})
	if err != nil {
		return nil, err
	}
	for _, info := range groups {
		if info.Config.Durable == "" || !slices.Contains(info.Config.FilterSubjects, p.subject) {
			continue // not a group of this topic
		}
		group := info.Config.Durable
		for _, subject := range info.Config.FilterSubjects {
			if its, ok := strings.CutPrefix(subject, p.retries("")); ok {
				group = its
			}
		}
		retries, err := t.count(ctx, s, p.schedule(retriesToken("")+group, "*"))
		if err != nil {
			return nil, err
		}
		add(nameOf(group), brokers.DepthRetry, retries)
		add(nameOf(group), brokers.DepthReady, info.NumPending)
	}
	if len(found) == 1 { // no group reads it yet
		stored, err := t.count(ctx, s, p.subject)
		if err != nil {
			return nil, err
		}
		add("", brokers.DepthReady, stored)
	}
	return found, nil
}

// count returns how many messages a stream has of a subject. The server counts for a consumer without listing subjects,
// of which there is one per schedule.
func (t *transport) count(ctx context.Context, s jetstream.Stream, subject string) (uint64, error) {
	c, err := ask(ctx, func(ctx context.Context) (jetstream.Consumer, error) {
		return s.CreateConsumer(ctx, jetstream.ConsumerConfig{
			FilterSubject: subject, AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: 10 * time.Second,
			MemoryStorage: true, Replicas: 1,
		})
	})
	if err != nil {
		return 0, err
	}
	info := c.CachedInfo()
	_ = t.conn.Publish("$JS.API.CONSUMER.DELETE."+info.Stream+"."+info.Name, nil) // at worst it is deleted in 10 s
	return info.NumPending, nil
}
