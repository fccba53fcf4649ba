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

// A program without the import for a scheme gets an error that names it.
func TestAll_MissingImportsAreNamed(t *testing.T) {
	for _, scheme := range brokers.Schemes() {
		_, err := new(brokers.Mux).Open(t.Context(), scheme+"://localhost")
		require.ErrorIs(t, err, brokers.ErrUnknownScheme)
		require.ErrorContains(t, err, `forgotten import? try _ "github.com/redrive-go/redrive/brokers/`, scheme)
	}
}
