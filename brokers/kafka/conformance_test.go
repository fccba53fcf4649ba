package kafka_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
)

func TestConformance(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			c := cluster(t)
			open := func(cfg brokers.Config, on *kfake.Cluster) (brokers.Broker, error) {
				cfg.URL = "kafka://" + strings.Join(on.ListenAddrs(), ",")
				return brokers.OpenConfig(context.Background(), cfg)
			}
			return brokertest.Backend{
				Open:      func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, c) },
				OpenOther: func(cfg brokers.Config) (brokers.Broker, error) { return open(cfg, cluster(t)) },
				Foreign: func(t *testing.T, topic string, m *message.Message) error {
					t.Helper()
					return produceForeign(t, c, topic, m)
				},
				Erase: func(t *testing.T, topic string, _ brokers.Names) {
					t.Helper()
					erase(t, c, topic)
				},
			}
		},
		Parts: 1,
		Except: map[string]string{
			"Operator_ErasesAQueueThatAnotherProcessRecreates": "the topic has one partition, so one of the two processes gets nothing",
		},
		Factor: 0.03,
		Quiet:  200 * time.Millisecond,
		Late:   8 * time.Second, // many cases run at once, along with other packages; precision is tested in virtual time
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}

// erase deletes a topic and the topics of its consumers, as an operator does; the offsets of its groups are kept.
func erase(t *testing.T, c *kfake.Cluster, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	all, err := admin.ListTopics(t.Context())
	require.NoError(t, err)
	names := slices.DeleteFunc(all.Names(), func(name string) bool { return !strings.HasPrefix(name, topic) })
	require.Contains(t, names, topic)
	_, err = admin.DeleteTopics(t.Context(), names...)
	require.NoError(t, err)
}

// produceForeign publishes m with a plain client.
func produceForeign(t *testing.T, c *kfake.Cluster, topic string, m *message.Message) error {
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
}
