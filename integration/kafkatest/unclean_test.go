package kafkatest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// A topic loses its last records, because a replica that had been down became its leader (unclean.leader.election), and
// grows past the groups' positions before their members are back. New records at offsets that the groups had settled
// used to be skipped: those before a position, in the topic and in its retry topics; those that the note of an earlier
// position lists; and with order=key one at the offset of a message that blocks its key.
func TestUnclean_RecordsAtOffsetsOfLostOnes(t *testing.T) {
	const kept, lost, added = 10, 10, 15 // records on both replicas, on the first only, and after the election
	c := services.KafkaOf(t, 3)
	topic := c.Nodes[0].Topic(t)
	admin, err := sarama.NewClusterAdmin(c.Brokers, sarama.NewConfig())
	require.NoError(t, err)
	unclean, enough, stamped := "true", "1", "LogAppendTime"
	for _, name := range []string{topic, topic + ".retries_retry.500"} {
		require.NoError(t, admin.CreateTopic(name, &sarama.TopicDetail{
			NumPartitions: -1, ReplicationFactor: -1, ReplicaAssignment: map[int32][]int32{0: {1, 2}},
			ConfigEntries: map[string]*string{
				"unclean.leader.election.enable": &unclean, "min.insync.replicas": &enough, "message.timestamp.type": &stamped,
			},
		}, false))
	}
	require.NoError(t, admin.Close())
	leads := func(node *services.KafkaServer) {
		for _, name := range []string{topic, topic + ".retries_retry.500"} {
			await.True(t, func() bool {
				cfg := sarama.NewConfig()
				cfg.Metadata.Retry.Max = 0
				client, err := sarama.NewClient(c.Brokers, cfg)
				if err != nil {
					return false
				}
				defer client.Close()
				leader, err := client.Leader(name, 0)
				return err == nil && leader.Addr() == node.Brokers[0]
			}, "%s leads %s", node.Brokers[0], name)
		}
	}
	leads(c.Nodes[0])

	l := newLedger()
	begin := func() (end func()) {
		url := func(group string) string { return c.URL() + "?session-timeout=6s&group=" + group }
		retries := join(t, url("retries"), topic, 500*time.Millisecond, func(m *message.Message) error {
			if a, _ := middleware.AttemptFrom(m.Context()); a.Number == 1 {
				return errOnce
			}
			l.handled("retries: " + string(m.Payload))
			return nil
		})
		ordered := join(t, url("ordered&order=key&order-dead=block"), topic, time.Second, func(m *message.Message) error {
			l.handled("ordered: " + string(m.Payload))
			if string(m.Payload) == "old 12" {
				return middleware.Permanent(errors.New("never"))
			}
			return nil
		})
		noted := open(t, url("noted&concurrency=4"))
		messages, err := noted.Subscriber().Subscribe(t.Context(), topic)
		require.NoError(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for m := range messages {
				if string(m.Payload) == "old 5" {
					continue // not settled as long as the first members run
				}
				l.handled("noted: " + string(m.Payload))
				m.Ack()
			}
		}()
		return func() {
			retries.leave()
			ordered.leave()
			require.NoError(t, noted.Close())
			<-ended
		}
	}
	publish := func(what string, first, last int) {
		b := open(t, c.URL())
		for i := first; i < last; i++ {
			m := message.NewMessage("", fmt.Appendf(nil, "%s %d", what, i))
			m.Metadata[envelope.KeyKafkaKey] = strconv.Itoa(i)
			require.NoError(t, b.Publisher().Publish(topic, m))
		}
	}
	handled := func(what string, n int) {
		t.Helper()
		await.Count(t, n, func() (n int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			for name := range l.times {
				if strings.Contains(name, what) {
					n++
				}
			}
			return n
		}, "%s: messages are missing", what)
	}

	end := begin()
	publish("old", 0, kept)
	handled("old", 3*kept-1)
	require.NoError(t, c.Nodes[1].Kill())
	publish("old", kept, kept+lost)
	handled("old", 3*(kept+lost)-1)
	end()
	require.NoError(t, c.Nodes[0].Kill())
	require.NoError(t, c.Nodes[1].Start(t.Context()))
	leads(c.Nodes[1])
	publish("new", kept, kept+added)
	defer begin()()

	b := open(t, c.URL()).(*kafka.Broker)
	require.NoError(t, b.Release(t.Context(), topic, "ordered", []byte("12")))
	handled("new", 3*added)
}
