package brokers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

func TestSubscriber_StartsFromTheConfig(t *testing.T) {
	c, err := brokers.Config{URL: "amqp://h/?group=billing&concurrency=3&drain=2s&prefetch=50"}.Resolve(params)
	require.NoError(t, err)

	s, err := c.Subscriber(params)
	require.NoError(t, err)
	require.Equal(t, "billing", s.Group)
	require.Equal(t, 3, s.Concurrency)
	require.Equal(t, 2*time.Second, s.DrainTimeout)
	require.Equal(t, 50, s.Params.Int("prefetch"))

	s, err = c.Subscriber(params, brokers.WithGroup("mail"), brokers.WithConcurrency(8),
		brokers.WithPatterns("invoice.*"), brokers.WithPatterns("user.#"), brokers.WithParam("prefetch", "7"))
	require.NoError(t, err)
	require.Equal(t, "mail", s.Group)
	require.Equal(t, 8, s.Concurrency)
	require.Equal(t, 2*time.Second, s.DrainTimeout)
	require.Equal(t, []string{"invoice.*", "user.#"}, s.Patterns)
	require.Equal(t, 7, s.Params.Int("prefetch"))
	require.Equal(t, 50, c.Params.Int("prefetch"), "one subscriber's parameter does not affect the others")
}

func TestSubscriber_ReportsAllFaults(t *testing.T) {
	c, err := brokers.Config{URL: "amqp://h/"}.Resolve(params)
	require.NoError(t, err)
	_, err = c.Subscriber(params, brokers.WithConcurrency(2_000_000_000))
	require.ErrorContains(t, err, "concurrency 2000000000: must be between 1 and 100000")
	_, err = c.Subscriber(params, brokers.WithConcurrency(100_000))
	require.NoError(t, err)
	_, err = c.Subscriber(params, brokers.WithConcurrency(0),
		brokers.WithParam("prefetch", "0"), brokers.WithParam("nope", ""))
	for _, want := range []string{"concurrency 0", `prefetch="0"`, `unknown parameter "nope"`} {
		require.ErrorContains(t, err, want)
	}
}
