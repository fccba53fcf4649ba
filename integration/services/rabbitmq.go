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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rabbitInstall has the paths of a RabbitMQ and its Erlang.
type rabbitInstall struct {
	bin   string // with RabbitMQ's scripts, not the wrapper in /usr/sbin, which changes the user and drops the environment
	path  string // so that the scripts find everything else
	epmd  string
	owner account // of the server
}

// rabbitOfDebian returns the installation of Debian's package.
func rabbitOfDebian() (rabbitInstall, error) {
	const bin = "/usr/lib/rabbitmq/bin"
	owner, err := installed("rabbitmq", "TEST_AMQP_URL", "rabbitmq", filepath.Join(bin, "rabbitmq-server"))
	if err != nil {
		return rabbitInstall{}, err
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return rabbitInstall{}, &UnavailableError{Service: "rabbitmq", Env: "TEST_AMQP_URL", Cause: err}
	}
	return rabbitInstall{bin: bin, path: bin + ":/usr/bin:/bin", epmd: epmd, owner: owner}, nil
}

// rabbit4 returns the installation that integration/install.sh has unpacked. It runs as our user, because it may be in
// our home directory.
func rabbit4() (rabbitInstall, error) {
	root, err := unpacked("rabbitmq4", "TEST_AMQP4_URL", "REDRIVE_RABBITMQ4", "rabbitmq4", ".complete")
	tools, bin := filepath.Join(root, "bin"), filepath.Join(root, "usr/lib/rabbitmq/bin")
	return rabbitInstall{bin: bin, path: tools + ":" + bin + ":/usr/bin:/bin", epmd: filepath.Join(tools, "epmd")}, err
}

// RabbitConfig describes how a test's own RabbitMQ differs from the default. The zero value is ready to use.
type RabbitConfig struct {
	// Four starts RabbitMQ 4 instead of the version in Debian's stable release.
	Four bool

	// ConsumerTimeout is how long a delivery may be unacknowledged before the broker closes its channel. Defaults to
	// RabbitMQ's own 30 minutes. The broker checks once a minute.
	ConsumerTimeout time.Duration

	// DeadLetterConfirmTimeout is how long at-least-once dead-lettering waits for a confirm before it publishes again.
	// Defaults to RabbitMQ's own 3 minutes.
	DeadLetterConfirmTimeout time.Duration

	// Unsynced confirms writes of quorum queues before they are on disk: they survive a kill, but not a power failure. On
	// a slow disk, while other tests deleted their queues, RabbitMQ 3.10 has lost all quorum queues until its next start
	// (541 INTERNAL_ERROR for every declaration). Its log gives no reason; in ra_log_wal's complete_batch, a table that is
	// deleted while the batch is synced ends the process that all of them need.
	Unsynced bool

	// Conf is appended to rabbitmq.conf, one "key = value" per line.
	Conf string

	// Plugins are enabled in addition to rabbitmq_management. PluginsDir is for those that are not part of RabbitMQ.
	Plugins    []string
	PluginsDir string

	// TLS opens a second port with TLS and generated certificates; see Rabbit.TLSURL. Conf may require client
	// certificates: ssl_options.verify, ssl_options.fail_if_no_peer_cert.
	TLS bool
}

// Rabbit is a running RabbitMQ with its management API.
type Rabbit struct {
	server

	// URL is amqp://user:password@host:port/ of the default virtual host.
	URL string

	// ManagementURL is http://user:password@host:port of the management API; "" if the environment names the broker but
	// not its management API (TEST_AMQP_MANAGEMENT_URL).
	ManagementURL string

	// TLSURL is amqps://user:password@host:port/, without the necessary files, which Certificates names. Empty unless
	// RabbitConfig.TLS is set.
	TLSURL       string
	Certificates *Certificates

	node rabbitNode
}

var sharedRabbit, sharedRabbit4 lazy[*Rabbit]

// SharedRabbitMQ returns the broker that all tests of the process share. Do not stop it; use VHost to separate tests.
func SharedRabbitMQ(t testing.TB) *Rabbit {
	t.Helper()
	_, measures := t.(*testing.B)
	return sharedRabbits(t, &sharedRabbit, "TEST_AMQP", RabbitConfig{Unsynced: !measures})
}

// SharedRabbitMQ4 is SharedRabbitMQ with RabbitMQ 4.
func SharedRabbitMQ4(t testing.TB) *Rabbit {
	t.Helper()
	return sharedRabbits(t, &sharedRabbit4, "TEST_AMQP4", RabbitConfig{Four: true})
}

// sharedRabbits returns the broker that variables with this prefix name, or one with cfg.
func sharedRabbits(t testing.TB, l *lazy[*Rabbit], prefix string, cfg RabbitConfig) *Rabbit {
	t.Helper()
	return l.get(t, func(ctx context.Context) (*Rabbit, error) {
		if u := os.Getenv(prefix + "_URL"); u != "" {
			return &Rabbit{
				server: server{name: "rabbitmq", external: true}, URL: u, ManagementURL: os.Getenv(prefix + "_MANAGEMENT_URL"),
			}, nil
		}
		return StartRabbitMQ(ctx, cfg)
	})
}

// RabbitMQ starts a broker for this test only, and stops it at the end of the test.
func RabbitMQ(t testing.TB, cfg RabbitConfig) *Rabbit {
	t.Helper()
	return own(t, cfg, StartRabbitMQ)
}

// StartRabbitMQ starts a broker and returns once it serves AMQP and the management API. The caller must close it.
func StartRabbitMQ(ctx context.Context, cfg RabbitConfig) (*Rabbit, error) {
	rabbits, err := newRabbits(ctx, cfg, 1)
	if err != nil {
		return nil, err
	}
	return started(ctx, rabbits[0])
}

// newRabbits prepares n brokers that know each other, without starting them. Closing the first one stops the name
// server of all.
func newRabbits(ctx context.Context, cfg RabbitConfig, n int) (_ []*Rabbit, err error) {
	find := rabbitOfDebian
	if cfg.Four {
		find = rabbit4
	}
	install, err := find()
	if err != nil {
		return nil, err
	}
	epmd, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	nodes := make([]rabbitNode, n)
	defer func() {
		for i := range nodes {
			if err != nil && nodes[i].dir != "" {
				err = errors.Join(err, removeDir(nodes[i].dir))
			}
		}
	}()
	for i := range nodes {
		at, own, err := newPlace("rabbitmq", install.owner, 4)
		if err != nil {
			return nil, err
		}
		nodes[i] = rabbitNode{
			install: install, place: at, amqp: own[0], management: own[1], dist: own[2], tls: own[3], epmd: epmd[0],
		}
	}
	if n > 1 {
		cfg.Conf += clusterConf(nodes)
	}
	cookie := rand.Text()
	for i := range nodes {
		if err = nodes[i].configure(cfg, cookie); err != nil {
			return nil, fmt.Errorf("services: rabbitmq: %w", err)
		}
	}
	// Our own epmd, in the foreground: the one that a broker would start is a daemon that outlives all processes of the
	// test.
	port := strconv.Itoa(epmd[0])
	daemon := nodes[0].run(context.WithoutCancel(ctx), install.epmd, "-address", "127.0.0.1", "-port", port)
	names, err := startProcess(daemon, nodes[0].in("epmd.txt"))
	if err != nil {
		return nil, fmt.Errorf("services: rabbitmq: %w", err)
	}
	rabbits := make([]*Rabbit, n)
	for i := range nodes {
		rabbits[i] = newRabbit(nodes[i], cfg)
	}
	rabbits[0].closing = func() { _ = names.kill() }
	return rabbits, nil
}

func newRabbit(n rabbitNode, cfg RabbitConfig) *Rabbit {
	address := func(scheme string, port int) string {
		return (&url.URL{Scheme: scheme, User: url.UserPassword("guest", "guest"), Host: loopback(port)}).String()
	}
	r := &Rabbit{
		URL:           address("amqp", n.amqp) + "/",
		ManagementURL: address("http", n.management),
		node:          n,
		server:        server{name: "rabbitmq", place: n.place, stopSignal: syscall.SIGTERM, command: n.command},
	}
	if cfg.TLS {
		r.TLSURL = address("amqps", n.tls) + "/"
		r.Certificates = n.certificates
	}
	r.ready = func(ctx context.Context) error {
		checks := [][]string{{"local-alarms"}, {"protocol-listener", "amqp"}} // there is no alarm, and it serves AMQP
		if cfg.TLS {
			checks = append(checks, []string{"port-listener", strconv.Itoa(n.tls)}) // opened later
		}
		var err error
		for i := 0; i < len(checks) && err == nil; i++ {
			err = r.Management().Do(ctx, "GET", nil, nil, append([]string{"health", "checks"}, checks[i]...)...)
		}
		return err
	}
	return r
}

// VHost creates an empty virtual host for the test, deletes it at the end, and returns its AMQP URL. Without a known
// management API (see ManagementURL) it returns the URL of the default virtual host.
func (r *Rabbit) VHost(t testing.TB) string {
	t.Helper()
	if r.ManagementURL == "" {
		return r.URL
	}
	r.explain(t)
	return scratch(t, r.URL, r.Management().AddVHost, func(ctx context.Context, name string) error {
		return r.Management().Do(ctx, "DELETE", nil, nil, "vhosts", name)
	})
}

// Settle makes the broker write the state of new quorum queues to disk. Call it after declaring them and before Kill:
// RabbitMQ keeps a new queue's registration and vote in memory for up to 3 s (dets' delayed write), and a broker that
// is killed in that time comes back with the queue leaderless and its confirmed messages out of reach.
func (r *Rabbit) Settle(ctx context.Context) error {
	_, err := r.Ctl(ctx, "eval", "[dets:sync(T) || T <- dets:all()].")
	return err
}

// Ctl runs rabbitmqctl for the broker, which takes a second or two, and returns its output.
func (r *Rabbit) Ctl(ctx context.Context, args ...string) (string, error) {
	if r.external {
		return "", ErrExternal
	}
	program := filepath.Join(r.node.install.bin, "rabbitmqctl")
	out, err := r.run(ctx, program, append([]string{"-q"}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("services: rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// rabbitNode has the files of one broker.
type rabbitNode struct {
	place

	install                           rabbitInstall
	amqp, management, dist, epmd, tls int
	certificates                      *Certificates // nil without TLS
}

// configure writes the node's files. Nodes with the same cookie can form a cluster.
func (n *rabbitNode) configure(cfg RabbitConfig, cookie string) error {
	conf := []string{
		"listeners.tcp.1 = " + loopback(n.amqp),
		"management.tcp.ip = 127.0.0.1",
		"management.tcp.port = " + strconv.Itoa(n.management),
		"collect_statistics_interval = 1000", // 5 s by default: tests read counts
		"log.console = true",
		"log.console.level = warning",
		"log.file = false",
		"vm_memory_high_watermark.absolute = 1GB",
		"disk_free_limit.absolute = 50MB",
	}
	if cfg.ConsumerTimeout > 0 {
		conf = append(conf, fmt.Sprintf("consumer_timeout = %d", cfg.ConsumerTimeout.Milliseconds()))
	}
	if cfg.TLS {
		certificates, err := NewCertificates(n.dir)
		if err != nil {
			return err
		}
		n.certificates = certificates
		if err := n.owner.own(certificates.CA, certificates.ServerCert, certificates.ServerKey); err != nil {
			return err
		}
		conf = append(conf,
			"listeners.ssl.1 = "+loopback(n.tls),
			"ssl_options.cacertfile = "+certificates.CA,
			"ssl_options.certfile = "+certificates.ServerCert,
			"ssl_options.keyfile = "+certificates.ServerKey)
	}
	var advanced []string
	if cfg.DeadLetterConfirmTimeout > 0 {
		advanced = append(advanced, fmt.Sprintf("{rabbit, [{dead_letter_worker_publisher_confirm_timeout, %d}]}",
			cfg.DeadLetterConfirmTimeout.Milliseconds()))
	}
	if cfg.Unsynced {
		advanced = append(advanced, "{ra, [{wal_write_strategy, sync_after_notify}]}")
	}
	plugins := append([]string{"rabbitmq_management"}, cfg.Plugins...)
	files := map[string]string{
		"rabbitmq.conf":   strings.Join(conf, "\n") + "\n" + cfg.Conf + "\n",
		"advanced.config": "[" + strings.Join(advanced, ", ") + "].\n",
		"enabled_plugins": "[" + strings.Join(plugins, ",") + "].\n",

		"home/.erlang.cookie": cookie,
	}
	for _, name := range []string{"mnesia", "log", "home"} {
		if err := errors.Join(os.Mkdir(n.in(name), 0o700), n.owner.own(n.in(name))); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := n.write(name, text); err != nil {
			return err
		}
	}
	n.env = n.environment(cfg.PluginsDir)
	return nil
}

func (n rabbitNode) name() string { return fmt.Sprintf("redrive%d@localhost", n.amqp) }

func (n rabbitNode) command(ctx context.Context) *exec.Cmd {
	return n.run(ctx, filepath.Join(n.install.bin, "rabbitmq-server"))
}

// environment is that of RabbitMQ's programs. plugins is a directory in addition to the broker's own, or "".
func (n *rabbitNode) environment(plugins string) []string {
	env := []string{
		"HOME=" + n.in("home"), // with the node's own cookie
		"PATH=" + n.install.path,
		"RUNNING_UNDER_SYSTEMD=true", // rabbitmq-server calls exec, so our pid is that of the broker
		"ERL_EPMD_ADDRESS=127.0.0.1",
		fmt.Sprintf("ERL_EPMD_PORT=%d", n.epmd),
		"RABBITMQ_NODENAME=" + n.name(),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", n.dist),
		"RABBITMQ_CONFIG_FILE=" + n.in("rabbitmq.conf"),
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + n.in("advanced.config"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + n.in("enabled_plugins"),
		"RABBITMQ_MNESIA_BASE=" + n.in("mnesia"),
		"RABBITMQ_LOG_BASE=" + n.in("log"),
		"RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE=" + n.in("pid"),
		"RABBITMQ_CTL_ERL_ARGS=-kernel net_setuptime 120", // a busy broker does not respond to rabbitmqctl within 7 s
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
	}
	if plugins != "" {
		own, err := filepath.Glob(filepath.Join(filepath.Dir(n.install.bin), "lib", "rabbitmq_server-*", "plugins"))
		if err == nil {
			env = append(env, "RABBITMQ_PLUGINS_DIR="+strings.Join(append(own, plugins), ":"))
		}
	}
	return env
}
