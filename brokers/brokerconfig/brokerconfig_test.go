package brokerconfig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokerconfig"
	_ "github.com/redrive-go/redrive/brokers/memory"
)

var params = []brokers.Param{
	{Name: "prefetch", Type: brokers.Int, Default: "20"},
	{Name: "nack-pause", Type: brokers.Duration, Default: "100ms"},
	{Name: "mandatory", Type: brokers.Bool, Default: "true"},
}

// A file can configure everything that a URL can, and both resolve to the same configuration.
func TestParse_EqualsAURL(t *testing.T) {
	for name, tc := range map[string]struct{ url, yaml string }{
		"only the broker": {"mem://", "url: mem://"},
		"every common parameter": {
			"amqp://app:p%40ss@h:5672/vh?x-name=orders&x-group=billing&x-concurrency=8&x-drain=20s&x-publish-timeout=3s&x-delays=10s,1m0s" +
				"&x-naming=service-bus&x-project=easyweek&x-exchange={project}.events&x-queue={project}-{group}&x-retry={queue}.r{.delay}" +
				"&x-retry-exchange={queue}.rx&x-delayed={queue}.d&x-dead={queue}.x&x-dead-exchange={queue}.dx",
			`
url: amqp://h:5672/vh
username: app
password: p@ss
name: orders
group: billing
concurrency: 8
drain_timeout: 20s
publish_timeout: 3s
delays: [10s, 1m]
naming:
  preset: service-bus
  project: easyweek
  exchange: "{project}.events"
  queue: "{project}-{group}"
  retry: "{queue}.r{.delay}"
  retry_exchange: "{queue}.rx"
  delayed: "{queue}.d"
  dead: "{queue}.x"
  dead_exchange: "{queue}.dx"
`,
		},
		"numbers that are texts": { // the password 0123 was 83
			"mem://0123:0x1F@?x-name=007&x-group=1_000&x-project=%2B5&x-queue=1.10.{topic}&x-dead=1.10&prefetch=050" +
				"&x-concurrency=8&x-delays=10s",
			"url: mem://\nusername: 0123\npassword: 0x1F\nname: 007\ngroup: 1_000\nparams: {prefetch: 050}\n" +
				"concurrency: 08\ndelays: [10s]\n" +
				"naming: {project: +5, queue: '1.10.{topic}', dead: 1.10}\n",
		},
		"the driver's own": {
			"amqp://h/?prefetch=50&nack-pause=1s&mandatory=false",
			"url: amqp://h/\nparams: {prefetch: 50, nack-pause: 1s, mandatory: false}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fromURL, err := brokers.Config{URL: tc.url}.Resolve(params)
			require.NoError(t, err)
			parsed, err := brokerconfig.Parse([]byte(tc.yaml))
			require.NoError(t, err)
			fromFile, err := parsed.Resolve(params)
			require.NoError(t, err)
			// The user name and the password may be given in the URL or in fields.
			fromFile.Username, fromFile.Password = "", ""
			require.Equal(t, fromURL, fromFile)
		})
	}
}

func TestParse_NamesTheLineOfAFault(t *testing.T) {
	for name, tc := range map[string]struct{ yaml, want string }{
		"unknown key":      {"url: mem://\npassword: hush\ngruop: a\n", `brokerconfig: line 3: unknown field "gruop"`},
		"unknown name key": {"url: mem://\nnaming:\n  preset: laravel\n  ded: x\n", `line 4: unknown field "ded"`},
		"number":           {"url: mem://\npassword: hush\nconcurrency: many\n", "line 3: concurrency: not a whole number"},
		"duration":         {"password: hush\ndrain_timeout: soon\n", `line 2: drain_timeout: "soon" is not a duration such as 250ms`},
		"too large":        {"password: hush\nconcurrency: 99999999999999999999\n", "line 2: concurrency: not a whole"},
		"truth":            {"password: hush\nrefuse_unrouted: yes please\n", "line 2: refuse_unrouted: not true or false"},
		"text":             {"password: hush\nname: [a]\n", "line 2: name: not a text"},
		"truth for time":   {"password: hush\ndrain_timeout: \"true\"\n", `line 2: drain_timeout: "true" is not a duration`},
		"bare duration":    {"password: hush\ndrain_timeout: 20\n", `line 2: drain_timeout: "20" is `},
		"bare delay": {
			"password: hush\ndelays: [10s, 20]\n",
			`line 2: delays[1]: "20" is not a duration such as 250ms, 30s or 1h30m: write its unit`,
		},
		"no list": {
			"password: x\ndelays: hush\n",
			"line 2: delays: not a list: write it in square brackets, such as [a, b]",
		},
		"fraction":      {"password: hush\nconcurrency: 1.5\n", "line 2: concurrency: not a whole number"},
		"no time":       {"password: hush\ndrain_timeout: .inf\n", `line 2: drain_timeout: ".inf" is not a duration`},
		"list for time": {"password: hush\ndrain_timeout: [1]\n", "line 2: drain_timeout: not a duration such as 250ms"},
		"text for keys": {"password: hush\nnaming: hush\n", "line 2: naming: not a mapping: write its keys below it"},
		"text for all":  {"hush\n", "line 1: not a mapping"},
		"below a key":   {"password: hush\nnaming:\n  preset: [hush]\n", "line 3: naming.preset: not a text"},
		"several": {
			"password: [hush]\nconcurrency: 1.5\n",
			"line 1: password: not a text\nline 2: concurrency: not a whole number",
		},
		"twice":         {"group: a\npassword: hush\ngroup: b\n", "line 3: "},
		"not YAML":      {"password: hush\nurl: [mem://\n", "brokerconfig: "},
		"a list":        {"- password: hush\n", "brokerconfig: "},
		"two documents": {"url: mem://\n---\npassword: hush\n", "the file holds several documents; write one"},
		// Unquoted passwords that mean something else in YAML.
		"alias":      {"url: mem://\npassword: *hush2\n", "line 2: could not find alias ..."},
		"literal":    {"url: mem://\npassword: |hush2\n", "line 2: invalid header option: ..."},
		"folded":     {"url: mem://\npassword: >hush2\n", "line 2: invalid header option: ..."},
		"tag":        {"url: mem://\npassword: !!bool \"a \\\" hush2\"\n", "line 2: password: not a text"},
		"reference":  {"url: mem://\npassword: a${hush2 x}b\n", "line 2: a ${...} is not a reference: write ${NAME}, "},
		"not a name": {"url: mem://\npassword: a${hush2!}b\n", "line 2: a ${...} is not a reference: write ${NAME}, "},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := brokerconfig.Parse([]byte(tc.yaml))
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "hush", "the lines around a fault may hold a password")
		})
	}
}

func TestParse_ReplacesReferences(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("from a file\n"), 0o600))
	t.Setenv("REDRIVE_TEST_PASSWORD", "a: {b}\n- ${HOME}")
	t.Setenv("REDRIVE_TEST_CONCURRENCY", "7")
	t.Setenv("REDRIVE_TEST_REFUSE", "true")

	c, err := brokerconfig.Parse([]byte(`
url: amqp://${REDRIVE_TEST_HOST:-localhost}:5672/
password: ${REDRIVE_TEST_PASSWORD}
concurrency: ${REDRIVE_TEST_CONCURRENCY}
refuse_unrouted: ${REDRIVE_TEST_REFUSE}
username: ${REDRIVE_TEST_REFUSE}
group: "$${literal}"
params:
  token: ${file:` + secret + `}
`))
	require.NoError(t, err)
	require.Equal(t, "amqp://localhost:5672/", c.URL)
	require.Equal(t, "a: {b}\n- ${HOME}", c.Password, "a replaced value is not parsed again")
	require.Equal(t, 7, c.Concurrency)
	require.True(t, c.RefuseUnrouted)
	require.Equal(t, "true", c.Username)
	require.Equal(t, "${literal}", c.Group)
	require.Equal(t, "from a file", c.Params["token"])
}

func TestParse_NamesWrongReferences(t *testing.T) {
	_, err := brokerconfig.Parse([]byte("url: mem://\ngroup: ${REDRIVE_TEST_UNSET}\nname: ${open\nusername: ${a " +
		"b}\npassword: ${file:/nonexistent/redrive}\n"))
	for _, want := range []string{
		"line 2: ${REDRIVE_TEST_UNSET}: the environment variable is not set; set it, or write ${REDRIVE_TEST_UNSET:-default}",
		"line 3: a ${ is not closed by }",
		"line 4: a ${...} is not a reference: write ${NAME}",
		"line 5: ${file:...}: open /nonexistent/redrive: no such file",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestDecode_IntoALargerConfiguration(t *testing.T) {
	var c struct {
		Broker brokers.Config `yaml:"broker"`
		Limit  time.Duration  `yaml:"limit"`
	}
	require.NoError(t, brokerconfig.Decode([]byte("broker: {url: mem://, group: billing}\nlimit: 5s\n"), &c))
	require.Equal(t, "billing", c.Broker.Group)
	require.Equal(t, 5*time.Second, c.Limit)

	b, err := brokers.OpenConfig(t.Context(), c.Broker)
	require.NoError(t, err)
	require.NoError(t, b.Close())

	require.NoError(t, brokerconfig.Decode(nil, &c), "an empty file changes nothing")
	require.ErrorContains(t, brokerconfig.Decode([]byte("broker: {uri: mem://}"), &c), `line 1: unknown field "uri"`)
}

// between and keyed read other values than their fields have.
type (
	between struct{ Least, Most [2]int }
	keyed   struct{ Key []string }
)

func (b *between) UnmarshalYAML(read func(any) error) error {
	var own struct{ Least, Most int }
	err := read(&own)
	b.Least, b.Most = [2]int{own.Least}, [2]int{own.Most}
	return err
}

func (k *keyed) UnmarshalYAML(text []byte) error {
	k.Key = []string{string(text)}
	return nil
}

func TestDecode_ATypeThatReadsItself(t *testing.T) {
	var c struct {
		Limit between
		By    keyed
	}
	require.NoError(t, brokerconfig.Decode([]byte("limit: {least: 1, most: 5}\nby: {key: a}\n"), &c))
	require.Equal(t, 5, c.Limit.Most[0])
	require.Equal(t, []string{"{key: a}"}, c.By.Key)
	require.ErrorContains(t, brokerconfig.Decode([]byte("limit: {least: [1]}\n"), &c), "line 1: ")
}

// Anchors, aliases and merge keys are as good as what they stand for, and as bad.
func TestDecode_Anchors(t *testing.T) {
	type config struct {
		hold  int
		Hold  time.Duration
		Count uint
		Texts map[string]string
		Any   map[string]any
	}
	for text, want := range map[string]config{
		"hold: &a 1h\ncount: &b 5":  {Hold: time.Hour, Count: 5},
		"texts: {<<: {a: b}, c: d}": {Texts: map[string]string{"a": "b", "c": "d"}},
		"any: {x: &a {b: c}, y: {<<: *a}, z: [1, *a]}": {Any: map[string]any{
			"x": map[string]any{"b": "c"}, "y": map[string]any{"b": "c"}, "z": []any{uint64(1), map[string]any{"b": "c"}},
		}},
	} {
		var c config
		require.NoError(t, brokerconfig.Decode([]byte(text), &c), text)
		require.Equal(t, want, c, text)
	}
	for text, fault := range map[string]string{
		"count: &a 1.5":               "line 1: count: not a whole number",
		"hold: &a 1":                  `line 1: hold: "1" is not a duration`,
		"<<: {count: 1.5}":            "count: not a whole number",
		"texts: {<<: {a: [b]}, c: d}": "a: not a text",
	} {
		require.ErrorContains(t, brokerconfig.Decode([]byte(text), &config{hold: 1}), fault, text)
	}
}

// A file for another broker, with that driver's params, works with mem:// when only its URL is replaced, so tests need
// no second file. A misspelled parameter of mem:// is still refused.
func TestParse_ParamsOfADriverOnMem(t *testing.T) {
	const file = `
url: ${REDRIVE_TEST_URL:-amqp://rabbit.internal:5672/prod}
group: billing
params: {prefetch: 50, queue-type: quorum, mandatory: true, commit-interval: 1s, %s: 5ms}
`
	t.Setenv("REDRIVE_TEST_URL", "mem://")
	c, err := brokerconfig.Parse(fmt.Appendf(nil, file, "nack-pause"))
	require.NoError(t, err)
	b, err := brokers.OpenConfig(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	m := <-messages
	require.Equal(t, "1", m.UUID)
	m.Ack()

	c, err = brokerconfig.Parse(fmt.Appendf(nil, file, "nack-puase"))
	require.NoError(t, err)
	_, err = brokers.OpenConfig(t.Context(), c)
	require.ErrorContains(t, err, "did you mean nack-pause?")
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "broker.yaml")
	require.NoError(t, os.WriteFile(path, []byte("url: mem://\n"), 0o600))
	c, err := brokerconfig.Load(path)
	require.NoError(t, err)
	require.Equal(t, "mem://", c.URL)

	require.NoError(t, os.WriteFile(path, []byte("uri: mem://\n"), 0o600))
	_, err = brokerconfig.Load(path)
	require.EqualError(t, err, path+`: brokerconfig: line 1: unknown field "uri"`)

	_, err = brokerconfig.Load(path + ".missing")
	require.ErrorIs(t, err, os.ErrNotExist)
}
