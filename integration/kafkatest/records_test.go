package kafkatest

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the SQL driver

	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// produce writes raw records to the first partition, as any client can.
func produce(t *testing.T, k *services.KafkaServer, records ...*sarama.ProducerMessage) {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	cfg.Producer.Retry.Max = 100 // a busy broker leads a partition some time after the cluster announces it
	p, err := sarama.NewSyncProducer(k.Brokers, cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, p.SendMessages(records))
}

func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-messages:
		require.True(t, ok, "the subscription ended")
		return m
	case <-time.After(await.Patience):
		require.FailNow(t, "no message")
		return nil
	}
}

// Malformed, empty, binary and 1 MiB records survive a retry and a dead letter, at the broker's own limits.
func TestRecords_AnyRecordSurvivesRetryAndDeadLetter(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 1)
	b := open(t, k.URL()+"?group=billing")
	messages, err := b.Subscriber().Subscribe(t.Context(), topic)
	require.NoError(t, err)
	corpus := []*sarama.ProducerMessage{
		{Value: sarama.StringEncoder(`{"message_id":`)},
		{Key: sarama.StringEncoder("tombstone")},
		{Key: sarama.ByteEncoder{}, Value: sarama.ByteEncoder{}},
		{Key: sarama.ByteEncoder{0, 255}, Value: sarama.ByteEncoder{0, 1, 0xff, 0xfe}},
		{Value: sarama.ByteEncoder(bytes.Repeat([]byte{7}, 1<<20-200))},
		{Value: sarama.StringEncoder("v"), Headers: []sarama.RecordHeader{
			{Key: []byte("a"), Value: []byte{0xff}}, {Key: []byte("a"), Value: []byte("2")}, {Key: []byte("b")},
		}},
	}
	for _, record := range corpus {
		record.Topic = topic
		produce(t, k, record)
		first := receive(t, messages)
		origin, _ := envelope.OriginFrom(first.Context())
		require.NoError(t, b.Reschedule(t.Context(), *origin, first.Copy(), 0))
		first.Ack()
		second := receive(t, messages)
		require.Equal(t, first.UUID, second.UUID)
		require.Equal(t, first.Payload, second.Payload)
		require.Equal(t, first.Metadata, second.Metadata)
		again, _ := envelope.OriginFrom(second.Context())
		require.Equal(t, origin, again)
		require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
			Message: second, Origin: *again, Reason: "permanent",
			Err: envelope.Error{Message: "x", Trace: string(make([]byte, 4096))},
		}))
		second.Ack()
	}

	consumer, err := sarama.NewConsumer(k.Brokers, sarama.NewConfig())
	require.NoError(t, err)
	defer func() { require.NoError(t, consumer.Close()) }()
	dead, err := consumer.ConsumePartition(topic+".billing_dlq", 0, sarama.OffsetOldest)
	require.NoError(t, err)
	defer func() { require.NoError(t, dead.Close()) }()
	for i, sent := range corpus {
		var want []byte
		if sent.Value != nil {
			want, _ = sent.Value.Encode()
		}
		d := <-dead.Messages()
		require.True(t, bytes.Equal(want, d.Value), "record %d", i)
		require.Equal(t, sent.Value == nil, d.Value == nil, "record %d", i)
	}
}

// A foreign producer stored a record that fits into the topic but not into any of our topics: there is no room for its
// retry, nor for its dead letter in the first sink. It is dead-lettered to the next sink after one run, and no message
// waits for it.
func TestRecords_TooLargeForOursAreDeadLetteredToTheNextSink(t *testing.T) {
	k := services.SharedKafka(t)
	failures := map[string]error{"transient": errOnce, "permanent": middleware.Permanent(errOnce)}
	for title, failure := range failures {
		for _, order := range []string{"none", "key"} {
			t.Run(title+" with order="+order, func(t *testing.T) {
				letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"), dlq.WithoutSpool(),
					dlq.WithLogger(slog.New(slog.DiscardHandler)))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, letters.Close()) })
				l := newLedger()
				topic := k.CreateTopic(t, 1)
				cfg := middleware.Config{
					DeadLetters: letters, MaxAttempts: 3, Backoff: middleware.Constant(100 * time.Millisecond),
					Logger: slog.New(slog.DiscardHandler),
				}
				large := bytes.Repeat([]byte("x"), 900<<10)
				joinWith(t, k.URL()+"?group=billing&max-message-bytes=64KiB&order="+order, topic, cfg,
					func(m *message.Message) error {
						if len(m.Payload) == len(large) {
							l.handled("large")
							return failure
						}
						l.handled(string(m.Payload))
						return nil
					})
				produce(t, k,
					&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("a"), Value: sarama.ByteEncoder(large)},
					&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("a"), Value: sarama.StringEncoder("same key")},
					&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("b"), Value: sarama.StringEncoder("other key")},
				)
				l.wait(t, 3)
				entries, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{Limit: 10})
				require.NoError(t, err)
				require.Len(t, entries.Entries, 1)
				dead, err := letters.Store().Get(t.Context(), entries.Entries[0].ID)
				require.NoError(t, err)
				require.True(t, bytes.Equal(large, dead.Body.Payload), "with the same bytes")
				require.Equal(t, 1, l.of("large"))
			})
		}
	}
}

// The broker sets the timestamps of waiting records, so a producer's wrong clock makes no delay shorter or longer.
func TestDelay_ClocksApart(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 1)
	b := open(t, k.URL()+"?group=billing")
	messages, err := b.Subscriber().Subscribe(t.Context(), topic)
	require.NoError(t, err)
	const wait = time.Second
	first := message.NewMessage("creates the topic", nil)
	envelope.SetDelay(first, wait)
	require.NoError(t, b.Publisher().Publish(topic, first))
	receive(t, messages).Ack()
	for _, skew := range []time.Duration{5 * await.Patience, -5 * await.Patience, 0} {
		began := time.Now()
		produce(t, k, &sarama.ProducerMessage{
			Topic: topic + "_retry.1000", Value: sarama.StringEncoder("m"), Timestamp: began.Add(skew),
			Headers: []sarama.RecordHeader{{Key: []byte("x-kafka-wait"), Value: []byte("1000")}},
		})
		receive(t, messages).Ack()
		took := time.Since(began)
		t.Logf("with a clock that is off by %s: %s", skew, took)
		require.GreaterOrEqual(t, took, wait)
	}
}

// Cut connections and lost responses delay messages, but lose none.
func TestNetwork_CutWhileMessagesWait(t *testing.T) {
	k := services.Kafka(t, services.KafkaConfig{Proxied: true})
	topic := k.CreateTopic(t, 2)
	l := newLedger()
	url := "kafka://" + k.ProxiedBrokers[0] + "?group=billing&concurrency=8&publish-timeout=60s"
	m := join(t, url, topic, 500*time.Millisecond, func(m *message.Message) error {
		l.handled(string(m.Payload))
		if n := l.of(string(m.Payload)); n == 1 {
			return errOnce
		}
		return nil
	})
	const n = 600
	for i := range 3 {
		require.NoError(t, m.broker.Publisher().Publish(topic, numbers(i*n/3, (i+1)*n/3)...))
		require.NoError(t, k.Proxy.Cut())
		<-time.After(time.Second) // real time: the length of the outage
		require.NoError(t, k.Proxy.Heal())
		l.wait(t, (i+1)*n/3)
	}
	await.Count(t, 2*n, func() int { _, total := l.counts(); return total }, "retries are missing")
	t.Logf("3 cuts: 0 of %d lost, %d runs beyond two", n, l.settle(2*time.Second)-n)
}
