package brokers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

func TestRequire_NamesTheRemedy(t *testing.T) {
	b, err := memory.New(brokers.Config{Concurrency: 4, Params: brokers.Params{"max-message": "1KiB"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })

	require.NoError(t, brokers.Require(b, brokers.Needs{
		Groups: true, Delays: []time.Duration{0, 720 * time.Hour},
		MessageBytes: 1024, Concurrency: 64,
	}))

	err = brokers.Require(b, brokers.Needs{
		Durable: true, Ordered: true, Patterns: true, Transactions: true,
		CrashLimit: true, MessageBytes: 1025,
	})
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	for _, want := range []string{
		"brokers: mem: not supported by this broker: ",
		"open a broker that keeps them, such as amqp://",
		"use concurrency 1",
		"open it with naming=service-bus",
		"cannot publish inside a database transaction",
		"does not count deliveries",
		"its largest message has 1024 bytes, not 1025",
	} {
		require.ErrorContains(t, err, want)
	}
}

// limited is a broker with fewer capabilities than memory.
type limited struct{ brokers.Broker }

func (limited) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{Scheme: "tiny", MaxDelay: time.Minute, MaxConcurrency: 1}
}

func TestRequire_Limits(t *testing.T) {
	err := brokers.Require(limited{}, brokers.Needs{
		Groups: true, Delays: []time.Duration{time.Second, time.Hour},
		Concurrency: 2,
	})
	require.ErrorContains(t, err, "it has no consumer groups")
	require.ErrorContains(t, err, "its longest delay is 1m0s, not 1h0m0s: cap the backoff at 1m0s")
	require.ErrorContains(t, err, "it runs at most 1 handlers at once, not 2")
	require.NoError(t, brokers.Require(limited{}, brokers.Needs{Delays: []time.Duration{time.Minute}}))
}
