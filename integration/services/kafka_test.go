package services_test

import (
	"os"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

func kafkaConfig() *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Return.Successes = true
	// A busy broker leads a partition some time after the cluster announces it.
	cfg.Producer.Retry.Max, cfg.Metadata.Retry.Max = 100, 100
	return cfg
}

func produce(t *testing.T, brokers []string, topic, value string) (partition int32, offset int64) {
	t.Helper()
	producer, err := sarama.NewSyncProducer(brokers, kafkaConfig())
	require.NoError(t, err)
	defer producer.Close()
	partition, offset, err = producer.SendMessage(&sarama.ProducerMessage{
		Topic: topic,
		Value: sarama.StringEncoder(value),
	})
	require.NoError(t, err)
	return partition, offset
}

func consume(t *testing.T, brokers []string, topic string, partition int32, offset int64) string {
	t.Helper()
	consumer, err := sarama.NewConsumer(brokers, kafkaConfig())
	require.NoError(t, err)
	defer consumer.Close()
	var records sarama.PartitionConsumer
	await.True(t, func() bool {
		records, err = consumer.ConsumePartition(topic, partition, offset)
		return err == nil
	}, "a started broker leads its partitions")
	defer records.Close()
	select {
	case record := <-records.Messages():
		return string(record.Value)
	case <-time.After(await.Patience):
		t.Fatal("no record")
		return ""
	}
}

func TestKafkaVersion(t *testing.T) {
	pom, err := os.ReadFile("../kafka/pom.xml")
	require.NoError(t, err)
	require.Contains(t, string(pom), "<kafka.version>"+services.KafkaVersion+"</kafka.version>")
}

func TestSharedKafka_Topic(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 7)
	require.NotEqual(t, topic, k.Topic(t))

	partition, offset := produce(t, k.Brokers, topic, "hello")
	require.Equal(t, "hello", consume(t, k.Brokers, topic, partition, offset))

	client, err := sarama.NewClient(k.Brokers, kafkaConfig())
	require.NoError(t, err)
	defer client.Close()
	partitions, err := client.Partitions(topic)
	require.NoError(t, err)
	require.Len(t, partitions, 7)
}

func TestKafka_KilledKeepsAcknowledgedRecords(t *testing.T) {
	k := services.Kafka(t, services.KafkaConfig{Settings: map[string]string{"num.partitions": "1"}, Proxied: true})
	topic := k.CreateTopic(t, 1)
	partition, offset := produce(t, k.Brokers, topic, "kept")

	require.NoError(t, k.Kill())
	require.NoError(t, k.Start(t.Context()))
	require.Equal(t, "kept", consume(t, k.Brokers, topic, partition, offset))

	require.NoError(t, k.Restart(t.Context()))
	require.Equal(t, "kept", consume(t, k.ProxiedBrokers, topic, partition, offset))

	require.NoError(t, k.Proxy.Cut())
	_, err := sarama.NewClient(k.ProxiedBrokers, sarama.NewConfig())
	require.Error(t, err, "the broker is only reached through the proxy")
}
