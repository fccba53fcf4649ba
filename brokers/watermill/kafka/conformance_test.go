package kafka_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/kafka"
)

// cluster starts an in-process Kafka.
func cluster(t testing.TB, more ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append(more, kfake.NumBrokers(1), kfake.DefaultNumPartitions(1),
		kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func urlOf(c *kfake.Cluster, params string) string {
	return kafka.Scheme + "://" + strings.Join(c.ListenAddrs(), ",") + "?" + params
}

// backend opens brokers on c that share their Delays, like processes with one database.
func backend(t *testing.T, c *kfake.Cluster, params string) brokertest.Backend {
	t.Helper()
	delays := sync.OnceValue(func() brokers.Broker {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b
	})
	open := func(c *kfake.Cluster, cfg brokers.Config) (brokers.Broker, error) {
		cfg.URL = urlOf(c, params)
		return kafka.New(t.Context(), kafka.Config{Broker: cfg, Delays: delays(), Sarama: func(s *sarama.Config) {
			s.Consumer.MaxWaitTime = 50 * time.Millisecond // each Close waits for a pending fetch
		}})
	}
	return brokertest.Backend{
		Foreign: func(t *testing.T, topic string, m *message.Message) error {
			t.Helper()
			client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ProducerBatchMaxBytes(8<<20))
			require.NoError(t, err)
			defer client.Close()
			r := &kgo.Record{Topic: topic, Value: m.Payload}
			for key, value := range m.Metadata {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(value)})
			}
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "_watermill_message_uuid", Value: []byte(m.UUID)})
			return client.ProduceSync(t.Context(), r).FirstErr()
		},
		Open: func(cfg brokers.Config) (brokers.Broker, error) { return open(c, cfg) },
		OpenOther: func(cfg brokers.Config) (brokers.Broker, error) {
			return open(cluster(t, kfake.ClusterID("other")), cfg)
		},
	}
}

// The conformance suite and Watermill's own run on watermill-kafka.
func TestConformance(t *testing.T) {
	// sarama's metrics start one goroutine that never ends, even after everything is closed.
	b, err := brokers.Open(t.Context(), urlOf(cluster(t), "group=first"))
	require.NoError(t, err)
	require.NoError(t, b.Close())
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			return backend(t, cluster(t), "partitions=1")
		},
		Factor: 0.03,
		Late:   8 * time.Second, // many cases run at once, along with other packages
		Volume: 300,
		Watermill: &tests.Features{
			ConsumerGroups: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true,
			ForceShort: true,
		},
		TopicsApart: true,
		Except: map[string]string{
			"Publish_ToAMissingTopicThatMustExistIsRefused": "a Watermill Publisher does not report whether a topic exists",
		},
	})
}
