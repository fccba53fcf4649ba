package all_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all"
)

func TestAll_RegistersTheDrivers(t *testing.T) {
	for _, scheme := range []string{
		"mem", "amqp", "kafka", "postgres", "sqlite", "nats", "gochannel",
		"watermill+amqp", "watermill+kafka", "watermill+postgres", "watermill+mysql",
	} {
		require.Contains(t, brokers.Schemes(), scheme)
	}
	b, err := brokers.Open(t.Context(), "mem://")
	require.NoError(t, err)
	require.NoError(t, b.Close())
}

// A slip in a number must be refused when the broker is opened, not found as a million goroutines or a time that
// overflows.
func TestAll_NumbersAreBounded(t *testing.T) {
	for _, scheme := range brokers.Schemes() {
		d, ok := brokers.Lookup(scheme)
		require.True(t, ok)
		for _, p := range d.Params() {
			if p.Type == brokers.Int || p.Type == brokers.Duration {
				require.Positive(t, p.Max, "%s: %s", scheme, p.Name)
			}
		}
	}
}

// A program without the import for a scheme gets an error that names it.
func TestAll_MissingImportsAreNamed(t *testing.T) {
	for _, scheme := range brokers.Schemes() {
		_, err := new(brokers.Mux).Open(t.Context(), scheme+"://localhost")
		require.ErrorIs(t, err, brokers.ErrUnknownScheme)
		require.ErrorContains(t, err, `forgotten import? try _ "github.com/redrive-go/redrive/brokers/`, scheme)
	}
}
