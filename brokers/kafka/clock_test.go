package kafka_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/envelope"
)

// stampOnAppend makes kfake do what a broker does for topics with message.timestamp.type=LogAppendTime.
func stampOnAppend(c *kfake.Cluster, topics string) {
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range r.(*kmsg.ProduceRequest).Topics {
			if !strings.Contains(topic.Topic, topics) {
				continue
			}
			for _, p := range topic.Partitions {
				now := uint64(time.Now().UnixMilli())
				binary.BigEndian.PutUint64(p.Records[27:], now) // of the first record
				binary.BigEndian.PutUint64(p.Records[35:], now) // of the last
				binary.BigEndian.PutUint32(p.Records[17:], crc32.Checksum(p.Records[21:], crc32.MakeTable(crc32.Castagnoli)))
			}
		}
		return nil, nil, false
	})
}

// A delay has the right length even if the producer's clock is ahead or behind.
func TestDelay_ClocksApart(t *testing.T) { //nolint:tparallel // the cases share one subscription
	t.Parallel()
	c := cluster(t)
	stampOnAppend(c, "_retry")
	b := open(t, c)
	topic := name("reminders")
	messages := subscribe(t, b, topic)
	const wait = time.Second
	first := newMessage("creates the topic", "")
	envelope.SetDelay(first, wait)
	require.NoError(t, b.Publisher().Publish(topic, first))
	receive(t, messages).Ack()

	for title, skew := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour, "in time": 0} {
		t.Run(title, func(t *testing.T) {
			began := time.Now()
			produce(t, c, &sarama.ProducerMessage{
				Topic: topic + "_retry.1000", Value: sarama.StringEncoder(title), Timestamp: time.Now().Add(skew),
				Headers: []sarama.RecordHeader{raw("x-kafka-wait", []byte("1000"))},
			})
			m := receive(t, messages)
			m.Ack()
			took := time.Since(began)
			require.Equal(t, title, string(m.Payload))
			require.GreaterOrEqual(t, took, wait)
		})
	}
}

// A reader that held a record in memory asked for the clock of a deleted topic forever: neither that record came, nor
// those behind it.
func TestDelay_HeldRecordWhoseTopicIsDeleted(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	probed, deleted := make(chan struct{}), make(chan struct{})
	probe := sync.OnceFunc(func() { close(probed) })
	c.ControlKey(kmsg.Produce.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if records := r.(*kmsg.ProduceRequest).Topics[0].Partitions[0].Records; !bytes.Contains(records, []byte("probe")) {
			return nil, nil, false
		}
		probe()
		c.SleepControl(func() { <-deleted })
		return nil, nil, false
	})
	b := open(t, c)
	topic := name("reminders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("held", "")))
	retryIn(t, b, receiveID(t, messages, "held"), 2*time.Second)
	<-probed
	_, err := administer(t, c).DeleteTopics(t.Context(), topic+".billing_retry.2000")
	require.NoError(t, err)
	close(deleted)
	receiveID(t, messages, "held").Ack()
}
