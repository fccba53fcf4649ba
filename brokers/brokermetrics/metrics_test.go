package brokermetrics_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
)

// counting is a broker that counts its open connections and channels.
type counting struct{ brokers.Broker }

func (counting) Counts() (connections, channels int) { return 2, 7 }

func (counting) AcksFailed() uint64 { return 3 }

// late is a broker that is opened later.
type late struct {
	brokers.Broker

	open brokers.Broker
}

func (l late) Unwrap() brokers.Broker { return l.open }

// The RabbitMQ broker implements the counters.
var _ interface {
	Counts() (connections, channels int)
	AcksFailed() uint64
} = (*rabbitmq.Broker)(nil)

func TestCollector(t *testing.T) {
	b, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	closed, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	c := brokermetrics.New(map[string]brokers.Broker{
		"main": counting{b}, "gone": closed, "late": late{b, counting{b}}, "not open": late{closed, nil},
	})
	require.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(`
# HELP redrive_broker_acks_failed_total Messages that were handled and are redelivered, because their acks could not be sent.
# TYPE redrive_broker_acks_failed_total counter
redrive_broker_acks_failed_total{broker="gone"} 0
redrive_broker_acks_failed_total{broker="late"} 3
redrive_broker_acks_failed_total{broker="main"} 3
# HELP redrive_broker_channels Open channels.
# TYPE redrive_broker_channels gauge
redrive_broker_channels{broker="late"} 7
redrive_broker_channels{broker="main"} 7
# HELP redrive_broker_connections Open connections.
# TYPE redrive_broker_connections gauge
redrive_broker_connections{broker="late"} 2
redrive_broker_connections{broker="main"} 2
# HELP redrive_broker_up 1 if the broker answers, else 0.
# TYPE redrive_broker_up gauge
redrive_broker_up{broker="gone"} 0
redrive_broker_up{broker="late"} 1
redrive_broker_up{broker="main"} 1
redrive_broker_up{broker="not open"} 0
`)))
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NoError(t, b.Close())
}

// A wrapper's counter was 0, although the broker behind it counts.
func TestAcksFailed(t *testing.T) {
	for name, c := range map[string]struct {
		broker brokers.Broker
		want   uint64
	}{
		"Counted":    {counting{}, 3},
		"NotCounted": {struct{ brokers.Broker }{}, 0},
		"Wrapped":    {late{open: counting{}}, 3},
		"NotOpen":    {late{}, 0},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, brokermetrics.AcksFailed(c.broker)()) })
	}
}

const waitingName = "redrive_broker_waiting_messages"

func waitingText(lines string) *strings.Reader {
	return strings.NewReader("# HELP " + waitingName +
		" Messages that wait in the broker. The kind is delayed (first delivery), retry, parked (behind an earlier one of " +
		"its key), ready (for a consumer with room) or dead_letter (to be collected); Kafka has neither of the last two.\n" +
		"# TYPE " + waitingName + " gauge\n" + lines)
}

// Waiting messages are counted until they are due, and the broker is queried at most every 15 s.
func TestCollector_Waiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{Group: "billing", Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		c := brokermetrics.New(map[string]brokers.Broker{"main": b})
		compare := func(delayed, retries, ready, dead int) {
			t.Helper()
			require.NoError(t, testutil.CollectAndCompare(c, waitingText(fmt.Sprintf(strings.ReplaceAll(`
NAME{broker="main",kind="dead_letter",topic="orders"} %d
NAME{broker="main",kind="delayed",topic="orders"} %d
NAME{broker="main",kind="delayed",topic="orders.billing_dlq"} 0
NAME{broker="main",kind="ready",topic="orders"} %d
NAME{broker="main",kind="retry",topic="orders"} %d
NAME{broker="main",kind="retry",topic="orders.billing_dlq"} 0
`, "NAME", waitingName), dead, delayed, ready, retries)), waitingName))
		}
		origin := envelope.Origin{Topic: "orders", Consumer: "billing"}
		require.NoError(t, b.Reschedule(t.Context(), origin, message.NewMessage("0", nil), 0))
		require.NoError(t, b.DeadLetter(t.Context(),
			&envelope.DeadLetter{Message: message.NewMessage("dead", nil), Origin: origin}))
		m := message.NewMessage("1", nil)
		envelope.SetDelay(m, time.Minute)
		require.NoError(t, b.Publisher().Publish("orders", m))
		compare(1, 0, 1, 1)

		require.NoError(t, b.Reschedule(t.Context(), origin, message.NewMessage("2", nil), time.Hour))
		require.NoError(t, b.Reschedule(t.Context(), origin, message.NewMessage("3", nil), time.Hour))
		<-time.After(14 * time.Second)
		synctest.Wait()
		compare(1, 0, 1, 1)
		<-time.After(time.Second)
		synctest.Wait()
		compare(1, 2, 1, 1)
		<-time.After(time.Minute)
		synctest.Wait()
		compare(0, 2, 2, 1)
		<-time.After(time.Hour)
		synctest.Wait()
		compare(0, 0, 4, 1)
		problems, err := testutil.CollectAndLint(c)
		require.NoError(t, err)
		require.Empty(t, problems)
		require.NoError(t, b.Close())
	})
}

// reporter is a broker with given depths.
type reporter struct {
	brokers.Broker
	depths []brokers.Depth
	err    error
}

func (r *reporter) Depths(context.Context) ([]brokers.Depth, error) { return r.depths, r.err }

// The topic label has at most 101 values, however many topics a broker has and whatever their names, and a broker that
// fails shows no stale values.
func TestCollector_WaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		r := &reporter{Broker: b, depths: []brokers.Depth{{Topic: "\xff", Kind: brokers.DepthRetry, Messages: 1000}}}
		for i := range 300 {
			r.depths = append(r.depths,
				brokers.Depth{Topic: fmt.Sprint("topic", i), Group: "a", Kind: brokers.DepthRetry, Messages: int64(i)},
				brokers.Depth{Topic: fmt.Sprint("topic", i), Group: "b", Kind: brokers.DepthRetry, Messages: 1})
		}
		c := brokermetrics.New(map[string]brokers.Broker{"main": r})
		var want strings.Builder
		rest := 0
		for i := range 300 {
			if i < 201 {
				rest += i + 1
				continue
			}
			fmt.Fprintf(&want, "%s{broker=\"main\",kind=\"retry\",topic=\"topic%d\"} %d\n", waitingName, i, i+1)
		}
		fmt.Fprintf(&want, "%s{broker=\"main\",kind=\"retry\",topic=\"\uFFFD\"} 1000\n", waitingName)
		fmt.Fprintf(&want, "%s{broker=\"main\",kind=\"retry\",topic=\"other\"} %d\n", waitingName, rest)
		require.NoError(t, testutil.CollectAndCompare(c, waitingText(want.String()), waitingName))
		require.Equal(t, 101, testutil.CollectAndCount(c, waitingName))

		r.err = errors.New("away")
		<-time.After(15 * time.Second)
		synctest.Wait()
		require.Zero(t, testutil.CollectAndCount(c, waitingName))
		r.err = nil
		<-time.After(15 * time.Second)
		synctest.Wait()
		require.Equal(t, 101, testutil.CollectAndCount(c, waitingName))
		require.NoError(t, b.Close())
	})
}
