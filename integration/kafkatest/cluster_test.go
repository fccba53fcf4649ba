package kafkatest

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// With three brokers and three replicas of everything, two of which confirm, killing the broker that leads the topic
// with kill -9, under load and with retries waiting, loses no confirmed message and makes no publish fail.
func TestCluster_LeaderKilledUnderLoad(t *testing.T) {
	const callers, before, behind = 8, 500, 1500 // messages handled before the broker dies, and after that
	c := services.KafkaOf(t, 3)
	topic := c.Nodes[0].Topic(t)
	url := c.URL() + "?group=billing&concurrency=8&replication=3&partitions=3&publish-timeout=60s&session-timeout=6s"
	l := newLedger()
	m := join(t, url, topic, 500*time.Millisecond, func(m *message.Message) error {
		if a, _ := middleware.AttemptFrom(m.Context()); a.Number == 1 && len(m.Payload) > 0 &&
			m.Payload[len(m.Payload)-1] == '7' {
			return errOnce
		}
		l.handled(string(m.Payload))
		return nil
	})
	var (
		publish   = m.broker.Publisher().Publish
		confirmed atomic.Int64
		load      sync.WaitGroup
		stop      = make(chan struct{})
	)
	require.NoError(t, publish(topic, numbers(0, 1)...))
	confirmed.Store(1)
	for range callers {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i := int(confirmed.Add(1) - 1)
				if err := publish(topic, numbers(i, i+1)...); err != nil {
					t.Errorf("message %d: %v", i, err)
				}
			}
		})
	}
	l.wait(t, before)
	killed := c.Leader(t, topic, 0)
	require.NoError(t, killed.Kill())
	l.wait(t, before+behind)
	close(stop)
	load.Wait()
	n := int(confirmed.Load())
	l.wait(t, n)
	t.Logf("%s killed: 0 of %d lost, %d handled twice", killed.Brokers[0], n, l.settle(time.Second))
}
