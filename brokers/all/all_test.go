package all_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/all"
)

func TestAll_RegistersTheDrivers(t *testing.T) {
	for _, scheme := range []string{
		"mem", "amqp", "kafka", "postgres", "sqlite", "gochannel", "watermill+amqp", "watermill+kafka", "watermill+postgres", "watermill+mysql",
	} {
		require.Contains(t, brokers.Schemes(), scheme)
	}
	b, err := brokers.Open(t.Context(), "mem://")
	require.NoError(t, err)
	require.NoError(t, b.Close())
}
