package config_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/config"
)

// every has every key of the configuration, each with a valid value.
const every = `
store: {url: "postgres://db/app", schema: payroll, archive: old}
brokers:
  rabbit:
    url: amqp://rabbit.internal:5672/prod
    username: redrive
    password: hush
    name: redrive
    group: billing
    concurrency: 8
    drain_timeout: 5s
    publish_timeout: 5s
    delays: [10s]
    naming: {preset: service-bus, project: shop, exchange: e, queue: "{topic}.{group}", retry: "{queue}.retry{.delay}",
      retry_exchange: r, delayed: "{queue}.delayed", dead: "{queue}.dead", dead_exchange: d, patterns: true}
    refuse_unrouted: true
    params: {prefetch: 50}
    outcome: confirmed
collector:
  sources: [{broker: rabbit, topic: failed, origin: {topic: orders, consumer: c, exchange: e, routing_key: k}}]
  concurrency: 5
  hold: 90s
redrive:
  rate: 2.5
  outcome_timeout: 1h
  publish_timeout: 1m
  run_lease: 1m
  approval_above: 100
  approval_window: 1h
  rules: [{name: a, reason: exhausted, error_class: a, error_code: b, fingerprint: f, handler: h, topic: t, cause: c,
    after: 2m, max_after: 3m, redrives: 5, rate: 2, close_on_publish: true}]
server:
  address: 127.0.0.1:9000
  public_url: https://ops.example
  prefix: /ops
  hosts: [ops.example]
  origins: [https://ops.example]
  read_only: true
  audit_reads: true
  tls: {certificate: c.pem, key: k.pem}
  auth:
    tokens: [{name: ci, role: viewer, hash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]
    users: [{name: ana, role: admin, hash: "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy"}]
    oidc: {issuer: https://login.example, client_id: a, client_secret: hush, scopes: [openid], name_claim: email,
      groups_claim: groups, users: {ana: admin}, groups: {ops: viewer}, default_role: viewer, session: 8h}
    stored: true
    proxy: {from: [10.0.0.0/8], user_header: X-User, groups_header: X-Groups, users: {ana: admin}, groups: {ops: viewer},
      default_role: viewer}
  limits: {body: 65536, import: 65536, rate: 20, burst: 30, streams: 5, timeout: 10s}
redaction: {paths: ["$.card"], headers: [authorization], texts: ['\d{9}'], reveal_to: admin}
retention: {resolved: 90d, discarded: 90d, no_archive: true}
metrics: {off: false, legacy_names: true}
log: {level: debug, format: json}
notifications:
  receivers: [{name: ops, url: "https://hooks.example", format: webhook, secret: hush, on: [new_cause], per_hour: 5}]
  quiet: 48h
  interval: 5s
`

// property is a key in the schema of the configuration.
type property struct {
	Type       string
	Pattern    string // of durations
	Properties map[string]*property
	Items      *property
	Others     json.RawMessage `json:"additionalProperties"`
}

// keys has the kind of the value at every path of the schema.
func keys(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	var add func(path string, p *property)
	add = func(path string, p *property) {
		found[path] = p.Type
		if p.Pattern != "" {
			found[path] = "duration"
		}
		for key, child := range p.Properties {
			add(path+"."+key, child)
		}
		if p.Items != nil {
			add(path+"[0]", p.Items)
		}
		if p.Type != "object" || p.Properties != nil {
			return
		}
		named := &property{Type: "string"}
		_ = json.Unmarshal(p.Others, named) // true for parameters of drivers
		for ending, key := range map[string]string{"brokers": "rabbit", "users": "ana", "groups": "ops", "params": "prefetch"} {
			if strings.HasSuffix(path, ending) {
				add(path+"."+key, named)
			}
		}
	}
	var root property
	require.NoError(t, json.Unmarshal(config.Schema(), &root))
	for key, child := range root.Properties {
		add("$."+key, child)
	}
	return found
}

// A value of the wrong kind is refused with its line and its key, whatever the key; so is a value of the right kind
// that makes no sense, by its key. No value of the file is shown that may be a secret.
func TestParse_EveryKeyRefusesWhatIsNoValueForIt(t *testing.T) {
	t.Parallel()
	_, err := config.Parse([]byte(every))
	require.NoError(t, err)
	texts, below := []string{"hush", "''", "1.5", "true"}, []string{"[[hush]]", "{hush: 1}"}
	wrong := map[string][]string{
		"string":   below,
		"array":    append(texts, "{hush: 1}"),
		"object":   append(texts, "[{hush: 1}]"),
		"boolean":  append(below, "hush", "''", "1"),
		"integer":  append(below, "''", "true", "1.5", "'1.5'", ".inf", ".nan", "99999999999999999999"),
		"number":   append(below, "hush", "''", "true", ".inf", "NaN", "'inf'"),
		"duration": append(below, "''", "1", "1.5", "true", ".inf", ".nan", "5 minutes"),
	}
	negative := map[string]string{"integer": "-1", "number": "-0.5", "duration": "-1s"}
	for path, kind := range keys(t) {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			named := strings.TrimPrefix(path, "$.")
			for _, value := range wrong[kind] {
				line, err := parsedWith(t, path, value)
				require.ErrorContains(t, err, fmt.Sprintf("line %d: %s: ", line, named), value)
				require.NotContains(t, err.Error(), "hush", value)
			}
			if value := negative[kind]; value != "" && path != "$.server.limits.rate" {
				_, err := parsedWith(t, path, value)
				name := strings.TrimSuffix(named[strings.LastIndex(named, ".")+1:], "s[0]")
				require.ErrorContains(t, err, "must ")
				require.Contains(t, strings.ReplaceAll(err.Error(), " timeout", "_timeout"), name)
			}
		})
	}
}

// parsedWith parses the configuration with another value at a path, which is at a line.
func parsedWith(t *testing.T, path, value string) (int, error) {
	t.Helper()
	key, err := yaml.PathString(path)
	require.NoError(t, err)
	file, err := parser.ParseBytes([]byte(every), 0)
	require.NoError(t, err)
	require.NoError(t, key.ReplaceWithReader(file, strings.NewReader(value)), "%s has no value in this test", path)
	text := []byte(file.String())
	changed, err := parser.ParseBytes(text, 0)
	require.NoError(t, err)
	node, err := key.FilterFile(changed)
	require.NoError(t, err)
	_, err = config.Parse(text)
	return node.GetToken().Position.Line, err
}
