package services

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const rabbitBin = "/usr/lib/rabbitmq/bin" // not the wrapper in /usr/sbin, which changes the user and drops the environment

// RabbitConfig says how a RabbitMQ of a test's own differs from a stock one. The zero value is fine.
type RabbitConfig struct {
	// ConsumerTimeout is how long a delivery may stay unacknowledged before the broker closes its channel.
	// Defaults to RabbitMQ's own 30 minutes. The broker looks once a minute.
	ConsumerTimeout time.Duration

	// DeadLetterConfirmTimeout is how long at-least-once dead-lettering waits for a confirm before it publishes again.
	// Defaults to RabbitMQ's own 3 minutes.
	DeadLetterConfirmTimeout time.Duration

	// Conf is appended to rabbitmq.conf, one "key = value" a line.
	Conf string

	// Plugins are enabled besides rabbitmq_management. PluginsDir is where those lie that RabbitMQ does not bring along.
	Plugins    []string
	PluginsDir string

	// TLS opens a second port that speaks TLS, with certificates made for it; see Rabbit.TLSURL. Conf may ask for those of
	// clients: ssl_options.verify, ssl_options.fail_if_no_peer_cert.
	TLS bool
}

// Rabbit is a running RabbitMQ with its management API.
type Rabbit struct {
	server

	// URL is amqp://user:password@host:port/ of the default virtual host.
	URL string

	// ManagementURL is http://user:password@host:port of the management API; "" if the environment named the broker
	// and not its management (TEST_AMQP_MANAGEMENT_URL).
	ManagementURL string

	// TLSURL is amqps://user:password@host:port/, without the files that it needs, and Certificates are these. Empty unless
	// RabbitConfig.TLS.
	TLSURL       string
	Certificates *Certificates

	node rabbitNode
}

var sharedRabbit lazy[*Rabbit]

// SharedRabbitMQ returns the broker that all tests of the process share. Do not stop it; use VHost to keep apart.
func SharedRabbitMQ(t testing.TB) *Rabbit {
	t.Helper()
	r, err := sharedRabbit.get(func() (*Rabbit, error) {
		if u := os.Getenv("TEST_AMQP_URL"); u != "" {
			return &Rabbit{server: server{name: "rabbitmq", external: true}, URL: u, ManagementURL: os.Getenv("TEST_AMQP_MANAGEMENT_URL")}, nil
		}
		return StartRabbitMQ(context.Background(), RabbitConfig{})
	})
	Need(t, err)
	return r
}

// RabbitMQ starts a broker that belongs to the test alone and ends with it.
func RabbitMQ(t testing.TB, cfg RabbitConfig) *Rabbit {
	t.Helper()
	r, err := StartRabbitMQ(t.Context(), cfg)
	Need(t, err)
	owned(t, r)
	return r
}

// StartRabbitMQ starts a broker and returns when it serves AMQP and management. The caller closes it.
func StartRabbitMQ(ctx context.Context, cfg RabbitConfig) (*Rabbit, error) {
	owner, err := installed("rabbitmq", "TEST_AMQP_URL", "rabbitmq", filepath.Join(rabbitBin, "rabbitmq-server"))
	if err != nil {
		return nil, err
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return nil, &UnavailableError{Service: "rabbitmq", Env: "TEST_AMQP_URL", Cause: err}
	}
	ports, err := freePorts(5)
	if err != nil {
		return nil, err
	}
	dir, err := newDir("rabbitmq", owner)
	if err != nil {
		return nil, fmt.Errorf("services: rabbitmq: %w", err)
	}
	n := rabbitNode{dir: dir, owner: owner, amqp: ports[0], management: ports[1], dist: ports[2], epmd: ports[3], tls: ports[4], plugins: cfg.PluginsDir}
	if err := n.configure(cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("services: rabbitmq: %w", err), removeDir(dir))
	}
	// Our own epmd, in the foreground: the one that the broker would start is a daemon and outlives everybody.
	names, err := n.startEPMD(ctx, epmd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("services: rabbitmq: %w", err), removeDir(dir))
	}
	r := &Rabbit{
		URL:           (&url.URL{Scheme: "amqp", User: url.UserPassword("guest", "guest"), Host: loopback(n.amqp), Path: "/"}).String(),
		ManagementURL: (&url.URL{Scheme: "http", User: url.UserPassword("guest", "guest"), Host: loopback(n.management)}).String(),
		node:          n,
		server: server{
			name:       "rabbitmq",
			dir:        dir,
			stopSignal: syscall.SIGTERM,
			command:    n.command,
			closing:    func() { _ = names.kill() },
		},
	}
	if cfg.TLS {
		r.TLSURL = (&url.URL{Scheme: "amqps", User: url.UserPassword("guest", "guest"), Host: loopback(n.tls), Path: "/"}).String()
		r.Certificates = n.certificates
	}
	r.ready = func(ctx context.Context) error {
		if err := r.Management().Healthy(ctx); err != nil || !cfg.TLS {
			return err
		}
		return r.Management().Listening(ctx, n.tls) // it opens after the other one
	}
	if err := r.Start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// VHost makes an empty virtual host for the test, deletes it after, and returns its AMQP URL. Where the management API
// is not known (see ManagementURL) it returns the default virtual host's.
func (r *Rabbit) VHost(t testing.TB) string {
	t.Helper()
	if r.ManagementURL == "" {
		return r.URL
	}
	name := "test-" + strings.ToLower(rand.Text()[:10])
	if err := r.Management().AddVHost(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Management().DeleteVHost(ctx, name); err != nil {
			t.Logf("leave virtual host %s: %v", name, err) // the test may have killed the broker
		}
	})
	u, err := url.Parse(r.URL)
	if err != nil {
		t.Fatal("services: the AMQP URL cannot be parsed") // not err: it repeats the URL with its password
	}
	u.Path = "/" + name
	return u.String()
}

// Settle makes the broker write to disk what it knows of young quorum queues. Call it after declaring them and before
// Kill: RabbitMQ keeps a new queue's registration and vote in memory for up to 3 s (dets' delayed write), and a broker
// that is killed in that time comes back with the queue leaderless and its confirmed messages out of reach.
func (r *Rabbit) Settle(ctx context.Context) error {
	_, err := r.Ctl(ctx, "eval", "[dets:sync(T) || T <- dets:all()].")
	return err
}

// Ctl runs rabbitmqctl against the broker, which takes a second or two, and returns its output.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	if r.external {
		return "", ErrExternal
	}
	cmd := exec.CommandContext(ctx, filepath.Join(rabbitBin, "rabbitmqctl"), append([]string{"-q"}, args...)...)
	r.node.prepare(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("services: rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}
