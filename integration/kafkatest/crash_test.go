package kafkatest

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// open opens a broker with timeouts for a busy machine, unless url has others.
func open(t testing.TB, url string) brokers.Broker {
	t.Helper()
	b, err := brokers.OpenConfig(t.Context(), brokers.Config{URL: url, PublishTimeout: await.Patience})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// numbers returns messages first to last-1 with keys.
func numbers(first, last int) []*message.Message {
	var batch []*message.Message
	for i := first; i < last; i++ {
		m := message.NewMessage(fmt.Sprintf("m-%d", i), []byte(strconv.Itoa(i)))
		m.Metadata[envelope.KeyKafkaKey] = "key-" + strconv.Itoa(i%numberOfKeys)
		batch = append(batch, m)
	}
	return batch
}

// A consumer is killed with kill -9 repeatedly while it works, with retries in flight: nothing is lost, and only
// records handled since the last commit and, with concurrency, within the window are redelivered.
func TestCrash_KilledConsumersLoseNothing(t *testing.T) {
	k := services.SharedKafka(t)
	for _, c := range []struct {
		name, params string
		work         time.Duration
		perSecond    int // of three partitions
	}{
		{"one at a time", "&concurrency=1", 4 * time.Millisecond, 750},
		{"sixteen", "&concurrency=16", 20 * time.Millisecond, 2400},
		{"strict order", "&concurrency=16&order=key", 20 * time.Millisecond, 2400},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n, kills = 3000, 3
			topic := k.CreateTopic(t, 3)
			url := k.URL() + "?group=billing&commit-interval=50ms&session-timeout=3s" + c.params
			b := open(t, url)
			l := newLedger()
			for i := range kills {
				p := startConsumer(t, url, topic, c.work, l.handled)
				require.NoError(t, b.Publisher().Publish(topic, numbers(i*n/kills, (i+1)*n/kills)...))
				// It is killed when some of this batch have been handled, and some of its retries wait.
				l.wait(t, i*n/kills+n/kills/3)
				p.kill()
			}
			startConsumer(t, url, topic, c.work, l.handled)
			l.wait(t, n)
			duplicates := l.settle(time.Second)
			t.Logf("%d messages, %d kills: 0 lost, %d handled twice (%.2f %%)", n, kills, duplicates, float64(duplicates)*100/n)
			// This is the work between two commits, which are 50 ms apart and may take a while on a busy machine.
			require.Less(t, duplicates, kills*c.perSecond/2)
		})
	}
}

// The broker restarts while messages wait in its retry topics.
func TestRestart_OfTheBrokerWithMessagesWaiting(t *testing.T) {
	k := services.Kafka(t, services.KafkaConfig{})
	topic := k.CreateTopic(t, 2)
	url := k.URL() + "?group=billing&concurrency=8&publish-timeout=30s"
	l := newLedger()
	p := startConsumer(t, url, topic, time.Millisecond, l.handled)
	b := open(t, url)
	const n = 1000
	for i := range 4 {
		require.NoError(t, b.Publisher().Publish(topic, numbers(i*n/4, (i+1)*n/4)...))
		l.wait(t, (i*n+n/2)/4) // and every tenth waits for 300 ms
		if i == 1 {
			require.NoError(t, k.Kill())
			require.NoError(t, k.Start(t.Context()))
		} else {
			require.NoError(t, k.Restart(t.Context()))
		}
	}
	l.wait(t, n)
	t.Logf("4 restarts of the broker, one by kill -9: 0 of %d lost, %d handled twice", n, l.settle(2*time.Second))
	p.kill()
}
