package brokermetrics_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// counting is a broker that counts what it has open.
type counting struct{ brokers.Broker }

func (counting) Counts() (connections, channels int) { return 2, 7 }

// The RabbitMQ broker counts (D13).
var _ interface {
	Counts() (connections, channels int)
} = (*rabbitmq.Broker)(nil)

func TestCollector(t *testing.T) {
	b, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	closed, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	c := brokermetrics.New(map[string]brokers.Broker{"main": counting{b}, "gone": closed})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP redrive_broker_channels Channels that are open.
# TYPE redrive_broker_channels gauge
redrive_broker_channels{broker="main"} 7
# HELP redrive_broker_connections Connections that are open.
# TYPE redrive_broker_connections gauge
redrive_broker_connections{broker="main"} 2
# HELP redrive_broker_up 1 when the broker gave a sign of life, else 0.
# TYPE redrive_broker_up gauge
redrive_broker_up{broker="gone"} 0
redrive_broker_up{broker="main"} 1
`)))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NoError(t, b.Close())
}
