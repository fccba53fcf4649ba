package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokerconfig"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Config is the file.
type Config struct {
	Store     Store             `yaml:"store"     jsonschema:"description=Where dead letters are kept."`
	Brokers   map[string]Broker `yaml:"brokers"   jsonschema:"description=The brokers to collect from and to redrive to\\, by a name of your choice."`
	Collector Collector         `yaml:"collector" jsonschema:"description=The dead letter queues to read into the store."`
	Redrive   Redrive           `yaml:"redrive"   jsonschema:"description=Defaults of redrives."`
	Server    Server            `yaml:"server"    jsonschema:"description=The HTTP server of redrive serve."`
	Redaction Redaction         `yaml:"redaction" jsonschema:"description=Values that are hidden from people without permission."`
	Retention dlq.Retention     `yaml:"retention" jsonschema:"description=How long closed dead letters are kept while redrive serve runs."`
	Metrics   Metrics           `yaml:"metrics"   jsonschema:"description=Metrics for Prometheus at /metrics of redrive serve."`
	Log       Log               `yaml:"log"       jsonschema:"description=Level and format of the log."`

	Notifications Notifications `yaml:"notifications" jsonschema:"description=Receivers that redrive serve notifies when something needs a person."`
}

// Metrics configures what Prometheus sees.
type Metrics struct {
	Off         bool `yaml:"off" jsonschema:"description=Serve no metrics."`
	LegacyNames bool `yaml:"legacy_names" jsonschema:"description=Serve dlq_events_total and dlq_resolution_time_seconds too\\, for existing dashboards and alerts."`
}

// Store is where dead letters are kept.
type Store struct {
	URL     string `yaml:"url" jsonschema:"description=URL of the database: sqlite:FILE\\, postgres:// or mysql://\\, with the parameters of its driver.,example=sqlite:dead-letters.db"`
	Schema  string `yaml:"schema" jsonschema:"description=PostgreSQL: schema of the tables; by default the first of the search_path."`
	Archive string `yaml:"archive" jsonschema:"description=PostgreSQL: schema of the archive; by default archive\\, or the name of the schema and _archive."`
}

// Address is the URL, checked and with the values of the other fields added.
func (s Store) Address() (string, error) {
	address := s.URL
	u, err := driver.ParseURL(address)
	if err != nil {
		return "", err
	}
	if known := driver.Schemes(); !slices.Contains(known, u.Scheme) {
		return "", fmt.Errorf("unknown scheme %q: one of %s", u.Scheme, strings.Join(known, ", "))
	}
	for _, param := range [][2]string{{"schema", s.Schema}, {"archive", s.Archive}} {
		if param[1] == "" {
			continue
		}
		if !scheme.Same(u.Scheme, "postgres") {
			return "", fmt.Errorf("%s is for PostgreSQL only: on MySQL a schema is a database, which the URL names,"+
				" and a SQLite file is one store", param[0])
		}
		separator := "?"
		if strings.Contains(address, "?") {
			separator = "&"
		}
		address += separator + param[0] + "=" + url.QueryEscape(param[1])
	}
	return address, nil
}

// Broker is a broker's configuration, and how redrives to its consumers are closed.
type Broker struct {
	brokers.Config `yaml:",inline"`
	Outcome        collector.OutcomeSource `yaml:"outcome" jsonschema:"enum=confirmed,enum=reported,description=When a collected entry that was redriven is closed: at the broker's confirm (default) or at the consumer's own report."`
}

// Collector configures what is read into the store.
type Collector struct {
	Sources     []Source      `yaml:"sources"`
	Concurrency int           `yaml:"concurrency" jsonschema:"minimum=1,description=Messages of a source that are stored at once; 50 if not given."`
	Hold        time.Duration `yaml:"hold" jsonschema:"description=How long a message that the store does not take is held before it goes back to the broker; 1m if not given."`
}

// Source is one dead letter queue or topic.
type Source struct {
	Broker string `yaml:"broker" jsonschema:"required,description=A name under brokers."`
	Topic  string `yaml:"topic" jsonschema:"required,description=The dead letter queue or topic."`
	Origin Origin `yaml:"origin" jsonschema:"description=Where the messages came from and are redriven to; overrides their headers."`
}

// Origin is where messages came from.
type Origin struct {
	Topic      string `yaml:"topic"       jsonschema:"description=Topic that the consumer subscribed to."`
	Consumer   string `yaml:"consumer"    jsonschema:"description=Queue on RabbitMQ and consumer group elsewhere."`
	Exchange   string `yaml:"exchange"    jsonschema:"description=AMQP exchange of the first publication."`
	RoutingKey string `yaml:"routing_key" jsonschema:"description=AMQP routing key of the first publication."`
}

// Redrive has the defaults of redrives.
type Redrive struct {
	Rate           float64       `yaml:"rate" jsonschema:"minimum=0,description=Maximum messages per second; 0 sets no limit."`
	OutcomeTimeout time.Duration `yaml:"outcome_timeout" jsonschema:"description=How long to wait for the consumer's report of a redriven message; 1h if not given."`
	// PublishTimeout is for a batch of a run, too.
	PublishTimeout time.Duration  `yaml:"publish_timeout" jsonschema:"description=How long a broker may take to confirm; 30s if not given. After twice that time another process resends what a dead one was sending\\, unless its outcome is known."`
	RunLease       time.Duration  `yaml:"run_lease" jsonschema:"description=How long a run stays with a process that no longer answers; 30s if not given."`
	ApprovalAbove  *int64         `yaml:"approval_above" jsonschema:"minimum=0,description=How many messages one person may redrive within approval_window without the approval of another; no limit if not given."`
	ApprovalWindow time.Duration  `yaml:"approval_window" jsonschema:"description=How long a redriven message counts towards approval_above; 24h if not given."`
	Rules          []redrive.Rule `yaml:"rules" jsonschema:"description=Dead letters that redrive serve redrives automatically."`
}

// Log configures logging.
type Log struct {
	Level  string `yaml:"level" jsonschema:"enum=debug,enum=info,enum=warn,enum=error,description=Lowest level that is logged; info if not given."`
	Format string `yaml:"format" jsonschema:"enum=text,enum=json,description=text for people (default) or json for machines."`
}

// Defaults of a Config.
const (
	DefaultAddress     = "127.0.0.1:8321"
	DefaultConcurrency = 50
	DefaultGroup       = "redrive-collector" // of the collector: see Operating
)

// Load reads and checks a file.
func Load(path string) (*Config, error) { return load(path, true) }

// LoadBrokers is Load for commands that only use the brokers: the store may be missing.
func LoadBrokers(path string) (*Config, error) { return load(path, false) }

func load(path string, store bool) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	c, err := parse(data, store)
	if err != nil {
		return nil, fmt.Errorf("config: %s: %w", path, err)
	}
	return c, nil
}

// Parse reads and checks a configuration, and fills in its defaults.
func Parse(data []byte) (*Config, error) { return parse(data, true) }

func parse(data []byte, store bool) (*Config, error) {
	var c Config
	if err := brokerconfig.Decode(data, &c); err != nil {
		return nil, err
	}
	c.setDefaults()
	if err := c.validate(store); err != nil {
		return nil, err
	}
	return &c, nil
}

func (c *Config) setDefaults() {
	c.Collector.Concurrency = cmp.Or(c.Collector.Concurrency, DefaultConcurrency)
	c.Server.Address = cmp.Or(c.Server.Address, DefaultAddress)
	for name, b := range c.Brokers {
		b.Outcome = cmp.Or(b.Outcome, collector.OutcomeConfirmed)
		b.Name = cmp.Or(b.Name, "redrive")
		c.Brokers[name] = b
	}
}

// validate reports every fault that can be seen without opening anything.
func (c *Config) validate(store bool) error {
	var f faults
	if store && c.Store.URL == "" {
		f.add("store.url: required, such as sqlite:dead-letters.db")
	} else if _, err := c.Store.Address(); err != nil {
		f.add("store: %w", err)
	}
	c.validateBrokers(&f)
	c.validateCollector(&f)
	if _, err := redrive.ResolveRules(c.Redrive.Rules); err != nil {
		f.add("redrive.rules: %w", err)
	}
	c.validateNumbers(&f)
	_, _, redaction := c.Redaction.Rules()
	_, level := c.Log.level()
	c.Notifications.validate(&f)
	f = append(f, c.Server.validate(), redaction, level)
	if c.Log.Format != "" && c.Log.Format != "text" && c.Log.Format != "json" {
		f.add("log.format: %q: text or json", c.Log.Format)
	}
	return errors.Join(f...)
}

type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (c *Config) validateBrokers(f *faults) {
	for _, name := range c.Names() {
		b := c.Brokers[name]
		if b.URL == "" {
			f.add("brokers.%s.url: required", name)
		} else if err := brokers.CheckConfig(b.Config); err != nil {
			f.add("brokers.%s: %w", name, err)
		}
		if b.Outcome != collector.OutcomeConfirmed && b.Outcome != collector.OutcomeReported {
			f.add("brokers.%s.outcome: %q: %s or %s", name, b.Outcome, collector.OutcomeConfirmed,
				collector.OutcomeReported)
		}
	}
}

func (c *Config) validateCollector(f *faults) {
	seen := map[[2]string]bool{}
	for i, s := range c.Collector.Sources {
		at := fmt.Sprintf("collector.sources[%d]", i)
		if _, known := c.Brokers[s.Broker]; !known {
			f.add("%s.broker: %q is not under brokers", at, s.Broker)
		}
		if s.Topic == "" {
			f.add("%s.topic: required", at)
		}
		id := [2]string{s.Broker, s.Topic}
		if seen[id] {
			f.add("%s: duplicate %s of %s", at, s.Topic, s.Broker)
		}
		seen[id] = true
	}
}

// validateNumbers finds the numbers below zero, except those that the packages of brokers, rules and receivers check.
func (c *Config) validateNumbers(f *faults) {
	r, l := &c.Redrive, &c.Server.Limits
	if c.Collector.Concurrency < 1 {
		f.add("collector.concurrency: %d: must be at least 1", c.Collector.Concurrency)
	}
	if c.Collector.Hold < 0 || r.OutcomeTimeout < 0 || r.Rate < 0 || r.PublishTimeout < 0 || r.RunLease < 0 {
		f.add("collector.hold %s, redrive.outcome_timeout %s, rate %v, publish_timeout %s, run_lease %s: must not be "+
			"negative", c.Collector.Hold, r.OutcomeTimeout, r.Rate, r.PublishTimeout, r.RunLease)
	}
	if r.ApprovalWindow < 0 || r.ApprovalAbove != nil && *r.ApprovalAbove < 0 {
		f.add("redrive.approval_above, redrive.approval_window: must not be negative")
	}
	if oidc := c.Server.Auth.OIDC; oidc != nil && oidc.Session < 0 {
		f.add("server.auth.oidc.session %s: must not be negative", oidc.Session)
	}
	if l.Body < 0 || l.Import < 0 || l.Burst < 0 || l.Streams < 0 || l.Timeout < 0 {
		f.add("server.limits.body %d, import %d, burst %d, streams %d, timeout %s: must not be negative", l.Body, l.Import,
			l.Burst, l.Streams, l.Timeout)
	}
	if kept := c.Retention; kept.Resolved < 0 || kept.Discarded < 0 {
		f.add("retention.resolved %s, discarded %s: must not be negative", kept.Resolved, kept.Discarded)
	}
}

// Approval is the limit of what one person may send alone; nil means no limit.
func (r *Redrive) Approval() *dlq.Approval {
	if r.ApprovalAbove == nil {
		return nil
	}
	return &dlq.Approval{Above: *r.ApprovalAbove, Window: r.ApprovalWindow}
}

// Names lists the brokers, sorted.
func (c *Config) Names() []string { return slices.Sorted(maps.Keys(c.Brokers)) }

// Scheme is the scheme of the broker's URL, which is its name in envelope.Origin.
func (b *Broker) Scheme() string {
	scheme, _, _ := strings.Cut(b.URL, ":")
	return strings.ToLower(scheme)
}

// IsQueueBroker reports whether a consumer of this broker is a queue, to which any message can be sent by name.
func (b *Broker) IsQueueBroker() bool { return scheme.Same(b.Scheme(), "amqp") }

// Operating returns the broker's configuration for reading its dead letter queues and sending messages back. Its group
// defaults to DefaultGroup, which must not get into the names of the services' queues.
//
// On RabbitMQ the queue's name is taken literally and nothing is declared: the queue belongs to another service, with
// arguments that only that service knows. The naming of the file or the URL is the services'; explain and topology use
// it. On the other brokers a redrive needs the naming, so it is kept.
func (b *Broker) Operating() brokers.Config {
	cfg := b.Config
	cfg.Group = cmp.Or(cfg.Group, DefaultGroup)
	if !b.IsQueueBroker() {
		return cfg
	}
	cfg.URL = withoutParams(cfg.URL, "naming", "project", "exchange", "queue", "retry", "retry-exchange", "delayed",
		"dead", "dead-exchange", "declare", "transport", "delays")
	cfg.Naming = brokers.NameScheme{Preset: "store-only"}
	cfg.Delays = nil
	cfg.Params = brokers.Params{}
	maps.Copy(cfg.Params, b.Params)
	delete(cfg.Params, "transport")
	cfg.Params["declare"] = "read"
	return cfg
}

// withoutParams removes parameters from a URL, in both spellings. A URL that cannot be parsed is left for the open to
// report.
func withoutParams(rawURL string, names ...string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return rawURL
	}
	query := u.Query()
	for _, name := range names {
		query.Del(name)
		query.Del("x-" + name)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// Notifications configures who is notified of what.
type Notifications struct {
	Receivers []notify.Receiver `yaml:"receivers"`
	Quiet     time.Duration     `yaml:"quiet" jsonschema:"description=How long a cause must have been quiet to be notified as regressed when it comes back\\, in whole hours; 24h if not given."`
	Interval  time.Duration     `yaml:"interval" jsonschema:"description=How often the store is checked; 15s if not given."`
}

func (n *Notifications) validate(f *faults) {
	if err := notify.ValidateReceivers(n.Receivers); err != nil {
		f.add("notifications.receivers: %w", err)
	}
	if n.Quiet < 0 || n.Quiet%time.Hour != 0 || n.Interval < 0 {
		f.add("notifications.quiet %s: must be whole hours; interval %s: must not be negative", n.Quiet, n.Interval)
	}
}

// redactReceiver hides the secrets. The path of a URL is one: Slack's contain a key.
func redactReceiver(r *notify.Receiver) {
	if u, err := url.Parse(r.URL); err == nil && u.Host != "" {
		r.URL = u.Scheme + "://" + u.Host + "/" + hidden
	} else {
		r.URL = hidden
	}
	if r.Secret != "" {
		r.Secret = hidden
	}
}
