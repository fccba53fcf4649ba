package brokers_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

var params = []brokers.Param{
	{Name: "prefetch", Type: brokers.Int, Default: "20", Min: 1, Max: 65535},
	{Name: "delay", Default: "ttl", OneOf: []string{"ttl", "plugin"}},
	{Name: "mandatory", Type: brokers.Bool, Default: "true"},
	{Name: "wait", Type: brokers.Duration, Min: int64(time.Millisecond), Max: int64(time.Hour)},
	{Name: "limit", Type: brokers.Size, Default: "1MiB"},
	{Name: "steps", Type: brokers.DurationList},
	{Name: "sasl-password"},
	{Name: "key", Secret: true, OneOf: []string{"a"}},
	{Name: "heartbeat", Native: true},
	{Name: "name", Native: true}, // the backend has its own parameter of that name
}

func TestResolve_ParsesEveryKind(t *testing.T) {
	c, err := brokers.Config{URL: "amqp://h/?x-prefetch=50&delay=plugin&mandatory=false&wait=1m30s&limit=3KiB" +
		"&steps=10s,20s&sasl-password=p%26w&x-delays=1s,5s&drain=3s&publish-timeout=2s"}.Resolve(params)
	require.NoError(t, err)

	require.Equal(t, 50, c.Params.Int("prefetch"))
	require.Equal(t, "plugin", c.Params.String("delay"))
	require.False(t, c.Params.Bool("mandatory"))
	require.Equal(t, 90*time.Second, c.Params.Duration("wait"))
	require.Equal(t, int64(3072), c.Params.Bytes("limit"))
	require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second}, c.Params.Durations("steps"))
	require.Equal(t, "p&w", c.Params.String("sasl-password"))
	require.Equal(t, []time.Duration{time.Second, 5 * time.Second}, c.Delays)
	require.Equal(t, 3*time.Second, c.DrainTimeout)
	require.Equal(t, 2*time.Second, c.PublishTimeout)
	require.Equal(t, "amqp://h/", c.URL)

	again, err := c.Resolve(params)
	require.NoError(t, err)
	require.Equal(t, c, again, "resolving twice changes nothing")
}

func TestResolve_FillsDefaults(t *testing.T) {
	c, err := brokers.Config{URL: "mem://"}.Resolve(params)
	require.NoError(t, err)
	require.Equal(t, "mem://", c.URL)
	require.Equal(t, 20, c.Params.Int("prefetch"))
	require.True(t, c.Params.Bool("mandatory"))
	require.Equal(t, int64(1<<20), c.Params.Bytes("limit"))
	require.Zero(t, c.Params.Duration("wait"))
	require.Nil(t, c.Params.Durations("steps"))
	require.Equal(t, 1, c.Concurrency)
	require.NotEmpty(t, c.Name)
	require.Panics(t, func() { c.Params.Int("prefetchh") }, "a getter with a name that the driver did not declare")
	require.Panics(t, func() { c.Params.Int("delay") }, "a getter of another kind")
}

func TestResolve_NamesParameterAndValueOfEachFault(t *testing.T) {
	for query, want := range map[string]string{
		"prefetch=0":            `parameter prefetch="0": must be at least 1`,
		"prefetch=65536":        `parameter prefetch="65536": must be at most 65535`,
		"prefetch=-1":           `parameter prefetch="-1": must be a whole number such as 20`,
		"prefetch=1e3":          `parameter prefetch="1e3": must be a whole number such as 20`,
		"prefetch=+20":          `parameter prefetch=" 20": must be a whole number such as 20`,
		"prefetch=":             `parameter prefetch="": must be a whole number such as 20`,
		"delay=TTL":             `parameter delay="TTL": must be one of ttl, plugin`,
		"mandatory=1":           `parameter mandatory="1": must be true or false`,
		"wait=30":               `parameter wait="30": must be a duration with a unit, such as 250ms, 30s or 1h30m`,
		"wait=-1s":              `parameter wait="-1s": must not be negative`,
		"wait=2h":               `parameter wait="2h": must be at most 1h0m0s`,
		"limit=1MB":             `parameter limit="1MB": must be a number of bytes such as 1048576 or 1MiB`,
		"limit=9999999999GiB":   `parameter limit="9999999999GiB": must be a number of bytes such as 1048576 or 1MiB`,
		"steps=10s,,20s":        `parameter steps="10s,,20s": "" in the list must be a duration with a unit`,
		"x-concurrency=0":       `parameter concurrency="0": must be at least 1`,
		"concurrency=100001":    `parameter concurrency="100001": must be at most 100000`,
		"delays=1s,876000h":     "delay 876000h0m0s: the longest is 720h0m0s",
		"drain=2562047h":        "drain timeout 2562047h0m0s: the longest is 720h0m0s",
		"publish-timeout=721h":  "publish timeout 721h0m0s: the longest is 720h0m0s",
		"group=":                `parameter group is empty`,
		"group=a&x-group=b":     `parameter x-group is given twice`,
		"prefetch=1&prefetch=2": `parameter prefetch is given twice`,
		"x-heartbeat=5":         `URL: unknown parameter "x-heartbeat": did you mean heartbeat? known are concurrency, `,
		"prefech=50":            `URL: unknown parameter "prefech": did you mean prefetch? known are concurrency, dead, dead-exchange, delay, delayed, delays, drain, exchange, group, heartbeat, key, limit, mandatory, name, naming, prefetch, project, publish-timeout, queue, refuse-unrouted, retry, retry-exchange, sasl-password, steps, wait, x-name`,
		"x-naming=nope":         `naming: unknown preset "nope": known are default, delayed-backoff, laravel, service-bus, store-only, ttl-cycle`,
		"x-dead={queue}":        `naming: queue and dead are the same: "topic.group"`,
		"a%zz=1":                `a URL parameter has a % that two hexadecimal digits do not follow`,
		"key=topsecret":         `parameter key: the value must be one of a`,
	} {
		t.Run(query, func(t *testing.T) {
			_, err := brokers.Config{URL: "amqp://user:hush@h/?" + query}.Resolve(params)
			require.ErrorContains(t, err, want)
			require.NotContains(t, err.Error(), "hush")
			require.NotContains(t, err.Error(), "topsecret")
		})
	}
}

func TestResolve_ReportsAllFaultsAtOnce(t *testing.T) {
	_, err := brokers.Config{
		URL:         "amqp://user:hush@h/?prefetch=x&delay=y&nonsense=1",
		Concurrency: -1,
		Params:      brokers.Params{"wait": "soon", "steeps": "1s"},
		Naming:      brokers.NameScheme{Dead: "{que}", Retry: "{project}.r"},
	}.Resolve(params)
	for _, want := range []string{
		`prefetch="x"`, `delay="y"`, `"nonsense"`, "concurrency -1", `wait="soon"`,
		`params: unknown parameter "steeps": did you mean steps?`,
		"unknown variable {que}", "has {project}, but no project is set",
	} {
		require.ErrorContains(t, err, want)
	}
	require.NotContains(t, err.Error(), "hush")
}

func TestResolve_OursNeedAPrefixIfTheBackendAcceptsAnyName(t *testing.T) {
	declared := []brokers.Param{{Name: "*", Native: true}, {Name: "lease", Type: brokers.Duration, Default: "30s"}}

	c, err := brokers.Config{URL: "postgres://h/db?sslmode=disable&lease=native&x-lease=5s&group=native"}.Resolve(declared)
	require.NoError(t, err)
	require.Equal(t, "postgres://h/db?sslmode=disable&lease=native&group=native", c.URL)
	require.Equal(t, 5*time.Second, c.Params.Duration("lease"))
	require.Empty(t, c.Group)

	_, err = brokers.Config{URL: "postgres://h/db?x-leese=5s"}.Resolve(declared)
	require.ErrorContains(t, err, `unknown parameter "x-leese": did you mean x-lease?`)
}

func TestResolve_PutsUserAndPasswordIntoTheURL(t *testing.T) {
	c, err := brokers.Config{URL: "amqp://old:old@h/", Username: "app", Password: "p@ss/%w#rd"}.Resolve(nil)
	require.NoError(t, err)
	require.Equal(t, "amqp://app:p%40ss%2F%25w%23rd@h/", c.URL)
}

func TestConfig_NeverShowsSecrets(t *testing.T) {
	c := brokers.Config{
		URL:      "kafka://app:hush@h:1,g:2/?sasl-password=hush&group=g",
		Password: "hush",
		Group:    "billing",
		Params: brokers.Params{
			"sasl-password": "hush", "prefetch": "3", "management": "http://u:hush@h", "portal": "http://h?token=hush",
		},
	}
	token := brokers.Config{URL: "nats://h:4222", Username: "hush", Group: "billing"}
	for _, c := range []brokers.Config{c, token} {
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("open", "config", c)
		for _, shown := range []string{fmt.Sprint(c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), log.String()} {
			require.NotContains(t, shown, "hush")
			require.Contains(t, shown, "billing")
		}
	}
	require.Equal(t, "hush", c.Params["sasl-password"], "printing changes nothing")
}
