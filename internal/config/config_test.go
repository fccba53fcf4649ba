package config_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all" // amqp, kafka, mem, postgres, ...
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite, postgres, mysql
	"github.com/redrive-go/redrive/internal/config"
)

const receivers = "store: {url: x.db}\nnotifications: {receivers: "

const full = `
store:
  url: postgres://redrive:${TEST_CONFIG_PASSWORD}@db.internal/ops
brokers:
  rabbit:
    url: amqp://rabbit.internal:5672/prod?x-naming=service-bus&x-project=shop&heartbeat=7
    username: redrive
    password: s3cret
    delays: [10s, 1m]
    params: {management: "http://redrive:s3cret@rabbit.internal:15672"}
  log:
    url: kafka://k1:9092,k2:9092
    outcome: reported
    naming: {preset: laravel}
    drain_timeout: 5s
collector:
  hold: 90s
  sources:
    - {broker: rabbit, topic: shop.invoices.failed}
    - {broker: log, topic: payments.DLT, origin: {consumer: payments}}
redrive:
  rate: 2.5
  approval_above: 100
  rules: [{name: outages, cause: connection refused, after: 2m, redrives: 5}]
server:
  address: "0.0.0.0:9000"
  prefix: /ops
  hosts: [ops.example]
  auth:
    tokens: [{name: ci, role: operator, hash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]
    users: [{name: ana, role: admin, hash: "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"}]
    proxy: {from: [10.0.0.0/8], groups: {ops: approver}, default_role: viewer}
  limits: {body: 65536, rate: 20}
redaction:
  paths: ["$.card.number", "$..cpf"]
  headers: [authorization]
  texts: ['\d{3}\.\d{3}\.\d{3}-\d{2}']
  reveal_to: admin
retention: {resolved: 2160h}
notifications:
  quiet: 48h
  receivers:
    - {name: ops, url: "https://hooks.example/s3cret", secret: s3cret, on: [new_cause, store_down], per_hour: 5}
    - {name: chat, url: "https://hooks.slack.com/services/s3cret", format: slack}
log: {level: debug, format: json}
`

func TestParse(t *testing.T) {
	t.Setenv("TEST_CONFIG_PASSWORD", "hunter2")
	c, err := config.Parse([]byte(full))
	require.NoError(t, err)
	require.Equal(t, "postgres://redrive:hunter2@db.internal/ops", c.Store.URL)
	require.Equal(t, []string{"log", "rabbit"}, c.Names())
	require.Equal(t, collector.OutcomeConfirmed, c.Brokers["rabbit"].Outcome)
	require.Equal(t, collector.OutcomeReported, c.Brokers["log"].Outcome)
	require.Empty(t, c.Brokers["log"].Group, "the services', and as the file has it")
	require.Equal(t, 5*time.Second, c.Brokers["log"].DrainTimeout)
	require.Equal(t, 90*time.Second, c.Collector.Hold)
	require.Equal(t, config.DefaultConcurrency, c.Collector.Concurrency)
	require.Equal(t, "payments", c.Collector.Sources[1].Origin.Consumer)
	require.InDelta(t, 2.5, c.Redrive.Rate, 0)
	require.EqualValues(t, 100, *c.Redrive.ApprovalAbove)
	require.Equal(t, redrive.Rule{Name: "outages", CauseText: "connection refused", After: 2 * time.Minute, Redrives: 5},
		c.Redrive.Rules[0])
}

// Reading another service's queue declares nothing and takes its name literally; the services' naming stays in the
// file.
// Every duration of the file may be in days, as in the flags of the command and in the URL of a broker.
func TestParse_Days(t *testing.T) {
	t.Setenv("TEST_CONFIG_KEPT", "90d")
	c, err := config.Parse([]byte(`
store: {url: dead-letters.db}
brokers: {a: {url: "mem://?drain=1d", delays: [1d, '2d', 30s], publish_timeout: 1d12h}}
retention: {resolved: 90d, discarded: "${TEST_CONFIG_KEPT}"}
redrive: {approval_window: 7d, rules: [{name: a, topic: b, after: 1d}]}
collector: {hold: 0}
`))
	require.NoError(t, err)
	const day = 24 * time.Hour
	require.Equal(t, dlq.Retention{Resolved: 90 * day, Discarded: 90 * day}, c.Retention)
	require.Equal(t, []time.Duration{day, 2 * day, 30 * time.Second}, c.Brokers["a"].Delays)
	require.Equal(t, 36*time.Hour, c.Brokers["a"].PublishTimeout)
	require.Equal(t, 7*day, c.Redrive.ApprovalWindow)
	require.Equal(t, day, c.Redrive.Rules[0].After)
}

func TestBroker_Operating(t *testing.T) {
	t.Setenv("TEST_CONFIG_PASSWORD", "hunter2")
	c, err := config.Parse([]byte(full))
	require.NoError(t, err)
	rabbit := c.Brokers["rabbit"]
	operating := rabbit.Operating()
	require.Equal(t, "amqp://rabbit.internal:5672/prod?heartbeat=7", operating.URL)
	require.Equal(t, "read", operating.Params["declare"])
	require.Equal(t, "shop.invoices.failed", operating.Naming.For("shop.invoices.failed", operating.Group).Queue)
	require.Empty(t, operating.Delays)
	require.NotContains(t, rabbit.Params, "declare", "the file's own is not touched")

	log := c.Brokers["log"]
	require.Equal(t, brokers.NameScheme{Preset: "laravel"}, log.Operating().Naming)
	require.Equal(t, config.DefaultGroup, log.Operating().Group)
}

func TestParse_Faults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"unknown key": {
			"store: {url: x.db}\nbrokers:\n  a: {url: 'mem://', grup: x}",
			`line 3: unknown field "grup"`,
		},
		"no store": {"log: {level: info}", "store.url: required"},
		"empty":    {"", "store.url: required"},
		"duration": {"store: {url: x.db}\ncollector: {hold: soon}", `line 2: collector.hold: "soon" is not a duration`},
		"a DSN":    {"store: {url: 'host=db password=x'}", "store: dlq: open: this is a database driver's connection string"},
		"a mistyped store": {
			"store: {url: 'posgres://db/app'}",
			`store: unknown scheme "posgres": one of mariadb, mysql, postgres`,
		},
		"unset variable": {"store:\n  url: ${SURELY_NOT_SET_ANYWHERE}", "line 2: ${SURELY_NOT_SET_ANYWHERE}"},
		"unknown broker": {
			"store: {url: x.db}\ncollector: {sources: [{broker: a, topic: b}]}",
			`collector.sources[0].broker: "a" is not under brokers`,
		},
		"source twice": {"store: {url: x.db}\nbrokers: {a: {url: 'mem://'}}\ncollector: {sources: [{broker: a, topic: b}, " +
			"{broker: a, topic: b}]}", "duplicate b of a"},
		"no topic": {
			"store: {url: x.db}\nbrokers: {a: {url: 'mem://'}}\ncollector: {sources: [{broker: a}]}",
			"collector.sources[0].topic: required",
		},
		"no URL": {"store: {url: x.db}\nbrokers: {a: {group: g}}", "brokers.a.url: required"},
		"outcome": {
			"store: {url: x.db}\nbrokers: {a: {url: 'mem://', outcome: maybe}}",
			`brokers.a.outcome: "maybe": confirmed or reported`,
		},
		"a broker's scheme": {
			"store: {url: x.db}\nbrokers: {a: {url: 'stomp://x'}}",
			`brokers.a: brokers: unknown broker scheme "stomp"`,
		},
		"a broker's own": {"store: {url: x.db}\nbrokers: {a: {url: 'amqp://h/?x-transport=pigeon'}}", "transport"},
		"level":          {"store: {url: x.db}\nlog: {level: loud}", `log.level: "loud"`},
		"format":         {"store: {url: x.db}\nlog: {format: xml}", `log.format: "xml"`},
		"negative":       {"store: {url: x.db}\nredrive: {rate: -1}", "must not be negative"},
		"rule without name": {
			"store: {url: x.db}\nredrive: {rules: [{cause: refused}]}",
			"a rule needs a name",
		},
		"rule for everything": {
			"store: {url: x.db}\nredrive: {rules: [{name: all}]}",
			"(all): invalid request: it selects no entries",
		},
		"rule twice": {
			"store: {url: x.db}\nredrive: {rules: [{name: a, topic: t}, {name: a, topic: t}]}",
			"two rules have this name",
		},
		"lease negative": {"store: {url: x.db}\nredrive: {run_lease: -1s}", "must not be negative"},
		"rule with a reason that no message has": {
			"store: {url: x.db}\nredrive: {rules: [{name: a, reason: bored}]}",
			`reason "bored": one of permanent`,
		},
		"rule negative": {
			"store: {url: x.db}\nredrive: {rules: [{name: a, topic: t, after: -1s}]}",
			"must be positive",
		},
		"open to the world": {"store: {url: x.db}\nserver: {address: '0.0.0.0:8321'}", "configure server.auth"},
		"every interface":   {"store: {url: x.db}\nserver: {address: ':8321'}", "configure server.auth"},
		"a name":            {"store: {url: x.db}\nserver: {address: 'ops.example:8321'}", "configure server.auth"},
		"no port":           {"store: {url: x.db}\nserver: {address: localhost}", "host:port"},
		"plain token": {
			"store: {url: x.db}\nserver: {auth: {tokens: [{name: a, role: viewer, hash: secret}]}}",
			"config hash-token",
		},
		"plain password": {
			"store: {url: x.db}\nserver: {auth: {users: [{name: a, role: viewer, hash: secret}]}}",
			"config hash-password",
		},
		"unknown role": {
			"store: {url: x.db}\nserver: {auth: {proxy: {from: [10.0.0.7], default_role: root}}}",
			`unknown role "root"`,
		},
		"proxy from anywhere": {
			"store: {url: x.db}\nserver: {auth: {proxy: {from: [0.0.0.0/0], default_role: viewer}}}",
			"everyone",
		},
		"password in a URL": {
			"store: {url: x.db}\nserver: {public_url: 'https://u:hush@h'}",
			"must be URLs without user and password",
		},
		"password in an origin": {
			"store: {url: x.db}\nserver: {origins: ['https://h', 'https://u:hush@h']}",
			"must be URLs without user and password",
		},
		"password of the provider": {
			"store: {url: x.db}\nserver: {auth: {oidc: {issuer: 'https://u:hu%sh@h'}}}",
			"must be URLs without user and password",
		},
		"half of TLS": {"store: {url: x.db}\nserver: {tls: {key: k.pem}}", "go together"},
		"limits":      {"store: {url: x.db}\nserver: {limits: {body: -1}}", "server.limits"},
		"redaction":   {"store: {url: x.db}\nredaction: {paths: [card]}", "a path begins with $"},
		"reveal":      {"store: {url: x.db}\nredaction: {reveal_to: boss}", "redaction.reveal_to"},
		"retention":   {"store: {url: x.db}\nretention: {resolved: -1h}", "retention.resolved -1h0m0s, discarded 0s: must not be negative"},
		"clear text":  {receivers + "[{name: a, url: 'http://h.example', format: slack}]}", "must be https"},
		"not signed":  {receivers + "[{name: a, url: 'https://h.example'}]}", "a secret is required"},
		"receiver twice": {
			receivers + "[&a {name: a, url: 'https://h.example', format: slack}, *a]}",
			"two receivers are named",
		},
		"another format":      {receivers + "[{name: a, url: 'https://h.example', format: mail}]}", "webhook or slack"},
		"quiet minutes":       {"store: {url: x.db}\nnotifications: {quiet: 90m}", "whole hours"},
		"approval":            {"store: {url: x.db}\nredrive: {approval_above: -1}", "redrive.approval_above"},
		"several at once (1)": {"log: {format: xml}", "store.url"},
		"several at once (2)": {"log: {format: xml}", "log.format"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Parse([]byte(test.text))
			require.ErrorContains(t, err, test.want)
			require.NotRegexp(t, "hush|hu%", err.Error())
		})
	}
}

// The fields of a store become parameters of its URL.
func TestStore_Address(t *testing.T) {
	t.Parallel()
	for want, store := range map[string]config.Store{
		"a.db":                             {URL: "a.db"},
		"postgres://db/app?schema=payroll": {URL: "postgres://db/app", Schema: "payroll"},
		"postgresql://db/app?sslmode=disable&schema=payroll&archive=old": {
			URL: "postgresql://db/app?sslmode=disable", Schema: "payroll", Archive: "old",
		},
	} {
		address, err := store.Address()
		require.NoError(t, err)
		require.Equal(t, want, address)
	}
	for _, url := range []string{"mysql://db/app", "sqlite:a.db", "a.db"} {
		_, err := config.Parse([]byte("store: {url: " + strconv.Quote(url) + ", schema: payroll}"))
		require.ErrorContains(t, err, "on MySQL a schema is a database", url)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "redrive.yaml")
	_, err := config.Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("stor: {}"), 0o600))
	_, err = config.Load(path)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "line 1")
}

// A configuration that is shown contains no password.
func TestConfig_Redacted(t *testing.T) {
	t.Setenv("TEST_CONFIG_PASSWORD", "hunter2")
	c, err := config.Parse([]byte(full))
	require.NoError(t, err)
	shown, err := yaml.Marshal(c.Redacted())
	require.NoError(t, err)
	require.NotContains(t, string(shown), "hunter2")
	require.NotContains(t, string(shown), "s3cret")
	require.NotContains(t, string(shown), "9f86d081")
	require.NotContains(t, string(shown), "$2a$10$")
	require.Contains(t, string(shown), "shop.invoices.failed")
	require.Contains(t, string(shown), "https://hooks.example/xxxxx")
	require.Equal(t, "s3cret", c.Brokers["rabbit"].Password, "a copy")
	for url, want := range map[string]string{
		"root:hunter2@tcp(db:3306)/app":     "root:xxxxx",
		"host=db user=app password=hunter2": "(unreadable URL)",
		"data/dead.db":                      "data/dead.db",
		"sqlite:dead.db":                    "sqlite:dead.db",
		"sqlite:///data/dead.db":            "sqlite:///data/dead.db",
	} {
		c.Store.URL = url
		require.Equal(t, want, c.Redacted().Store.URL, url)
	}
}

// The schema accepts what Parse accepts and refuses unknown keys.
func TestSchema(t *testing.T) {
	t.Parallel()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource(config.SchemaID, parsed))
	schema, err := compiler.Compile(config.SchemaID)
	require.NoError(t, err)
	validate := func(text string) error {
		data, err := yaml.YAMLToJSON([]byte(text))
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		require.NoError(t, err)
		return schema.Validate(value)
	}
	require.NoError(t, validate(full))
	require.ErrorContains(t, validate("store: {url: x.db}\nserverr: {}"), "serverr")
	require.ErrorContains(t, validate("brokers: {a: {url: 'mem://', grup: x}}"), "grup")
	require.ErrorContains(t, validate("collector: {sources: [{broker: a}]}"), "topic")
	require.ErrorContains(t, validate("collector: {hold: soon}"), "hold")
	require.NoError(t, validate("retention: {resolved: 90d, discarded: 1d12h}"))
	require.ErrorContains(t, validate("retention: {resolved: 12h1d}"), "resolved")
}

// The logger of a configuration hides what the configuration hides, in every format.
func TestLog_Redacted(t *testing.T) {
	t.Parallel()
	rules, _, err := (&config.Redaction{Headers: []string{"token"}, Texts: []string{`\d{4}-\d{4}`}}).Rules()
	require.NoError(t, err)
	for _, log := range []config.Log{{Format: "json"}, {Format: "text"}, {}} {
		for _, colour := range []bool{true, false} {
			var out bytes.Buffer
			log.Logger(&out, colour, rules).Info("refused", "error", "card 1234-5678", "token", "s3cret")
			require.Contains(t, out.String(), "refused")
			require.NotContains(t, out.String(), "1234-5678")
			require.NotContains(t, out.String(), "s3cret")
		}
	}
}
