package kafka_test

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// administer returns a plain client of the cluster.
func administer(t testing.TB, c *kfake.Cluster) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

// openLogging is open with a log to inspect.
func openLogging(t *testing.T, c *kfake.Cluster, log *logbuffer.Buffer, params ...string) *kafka.Broker {
	t.Helper()
	b, err := brokers.OpenConfig(t.Context(), brokers.Config{
		URL: urlOf(c, append([]string{"group=billing"}, params...)...), Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*kafka.Broker)
}

// If a group is inactive for so long that Kafka forgets its positions, up to 30 days of its successful retries used to
// be redelivered, so finished retries are deleted from their topics.
func TestClean_FinishedRetriesAreNotRedelivered(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", ""), newMessage("2", "")))
	for range 2 {
		retryIn(t, b, receive(t, messages), 0)
	}
	for range 2 {
		receive(t, messages).Ack()
	}
	require.NoError(t, b.Close())
	admin := administer(t, c)
	_, err := admin.DeleteGroup(t.Context(), "billing")
	require.NoError(t, err)
	// otherwise they are redelivered
	_, err = admin.DeleteRecords(t.Context(), kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 2}}})
	require.NoError(t, err)

	b = open(t, c)
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("3", "")))
	receiveID(t, messages, "3").Ack()
	nothingMore(t, messages)
}

// Every topic, and for each of its partitions all of its partitions, used to be looked up on their own: with many, that
// took longer than the time for cleaning.
func TestClean_LooksUpAllTopicsTogether(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	delays := []time.Duration{0, 200 * time.Millisecond, 500 * time.Millisecond, time.Second}
	for range delays {
		require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	}
	for _, d := range delays {
		retryIn(t, b, receive(t, messages), d)
	}
	for range delays {
		receive(t, messages).Ack()
	}
	var lookups, cleaned atomic.Int32
	c.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		switch r := r.(type) {
		case *kmsg.OffsetCommitRequest:
			lookups.Store(0)
		case *kmsg.MetadataRequest:
			lookups.Add(1)
		case *kmsg.DeleteRecordsRequest:
			assert.Len(t, r.Topics, len(delays)) // not the test's goroutine
			cleaned.Store(lookups.Load())
		}
		return nil, nil, false
	})
	require.NoError(t, b.Close())
	require.Positive(t, cleaned.Load())
	require.LessOrEqual(t, cleaned.Load(), int32(3), "the list of all topics, these topics, and their leaders")
}

// An existing group whose position is no longer in the topic resumes at the oldest record, even with offset=newest,
// which only applies to new groups: 70 confirmed messages used to be skipped without a log line.
func TestOffset_OutOfRangeResumesAtTheOldest(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	log := &logbuffer.Buffer{}
	b := openLogging(t, c, log, "offset=newest", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", "")))
	receiveID(t, messages, "0").Ack()
	require.NoError(t, b.Close())

	b = openLogging(t, c, log, "offset=newest", "commit-interval=20ms")
	for id := range strings.FieldsSeq("1 2 3 4 5 6 7") {
		require.NoError(t, b.Publisher().Publish(topic, newMessage(id, "")))
	}
	_, err := administer(t, c).DeleteRecords(t.Context(), kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: 4}}})
	require.NoError(t, err)
	messages = subscribe(t, b, topic)
	for id := range strings.FieldsSeq("4 5 6 7") {
		receiveID(t, messages, id).Ack()
	}
	require.Contains(t, log.String(), "level=WARN")
	require.Contains(t, log.String(), "gone=3")
}

// A group that begins at the oldest record stores where that is: the offset 0 would be a lag of all records that the
// topic ever had, and would hide that others were removed before they were handled.
func TestOffset_OldestIsWhereTheTopicBegins(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	admin := administer(t, c)
	for begin := range int64(2) {
		topic, log := name("orders"), &logbuffer.Buffer{}
		publish := func(b *kafka.Broker, n int64) {
			for range n {
				require.NoError(t, b.Publisher().Publish(topic, newMessage("", "")))
			}
		}
		remove := func(before int64) {
			_, err := admin.DeleteRecords(t.Context(), kadm.Offsets{topic: {0: {Topic: topic, Partition: 0, At: before}}})
			require.NoError(t, err)
		}
		b := open(t, c)
		publish(b, begin)
		if begin > 0 {
			remove(begin)
		}
		subscribe(t, b, topic)
		require.NoError(t, b.Joined(t.Context()))
		require.NoError(t, b.Close())
		positions, err := admin.FetchOffsets(t.Context(), "billing")
		require.NoError(t, err)
		at, _ := positions.Lookup(topic, 0)
		require.Equal(t, begin, at.At)

		b = openLogging(t, c, log)
		publish(b, 3)
		remove(begin + 2)
		receive(t, subscribe(t, b, topic)).Ack()
		require.Contains(t, log.String(), "gone=2")
	}
}

// If an operator deletes a topic, its retry topic or its dead letter topic while consumers run, Ping reports it, and
// the topic is recreated at the next use.
func TestTopics_DeletedWhileRunning(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	admin := administer(t, c)
	cycle := func(id string) {
		t.Helper()
		require.NoError(t, b.Publisher().Publish(topic, newMessage(id, "")))
		m := receiveID(t, messages, id)
		origin, _ := envelope.OriginFrom(m.Context())
		require.NoError(t, b.DeadLetter(t.Context(),
			&envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "permanent"}))
		retryIn(t, b, m, 10*time.Millisecond)
		receiveID(t, messages, id).Ack()
	}
	cycle("1")
	require.NoError(t, b.Ping(t.Context()))
	for i, gone := range []string{topic + ".billing_retry.100", topic + ".billing_dlq", topic} {
		_, err := admin.DeleteTopics(t.Context(), gone)
		require.NoError(t, err)
		t.Log("deleted", gone)
		if err := b.Ping(t.Context()); err != nil {
			require.ErrorContains(t, err, gone)
		} else { // a reader noticed it first, and recreates the topic
			require.Eventually(t, func() bool {
				there, err := admin.ListTopics(t.Context(), gone)
				return err == nil && there.Has(gone)
			}, patience, 10*time.Millisecond, "%s is deleted, but Ping does not report it", gone)
		}
		cycle("after " + string(rune('a'+i)))
		require.NoError(t, b.Ping(t.Context()))
	}
	require.Len(t, consumeRaw(t, c, topic+".billing_dlq", 2), 2)
}

// The last commit for a deleted topic used to be retried for ten seconds and then abandoned, by Close and by a
// subscription whose topic was recreated.
func TestTopics_NoCommitIsLoggedAsMissedForADeletedOne(t *testing.T) {
	t.Parallel()
	for title, again := range map[string]bool{"at Close": false, "while consumed": true} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			topic := name("orders")
			log := &logbuffer.Buffer{}
			b := openLogging(t, c, log, "commit-interval=1m")
			messages := subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
			receiveID(t, messages, "1").Ack()
			admin := administer(t, c)
			_, err := admin.DeleteTopics(t.Context(), topic)
			require.NoError(t, err)
			if again {
				require.Eventually(t, func() bool {
					there, err := admin.ListTopics(t.Context(), topic)
					return err == nil && there.Has(topic)
				}, patience, 10*time.Millisecond, "the subscription recreates its topic")
				require.NoError(t, b.Publisher().Publish(topic, newMessage("2", "")))
				receiveID(t, messages, "2").Ack()
			}
			require.NoError(t, b.Close())
			require.NotContains(t, log.String(), "not committed")
		})
	}
}

// With auto-create=false a deleted topic stays missing, and a readiness check has to report that every time. Readers
// that noticed it first, and Ping itself, used to forget the topic.
func TestPing_NamesAMissingTopicUntilItExists(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	operator := open(t, c)
	plan := operator.Plan(topic)
	require.NoError(t, operator.Apply(t.Context(), plan))
	log := &logbuffer.Buffer{}
	b := openLogging(t, c, log, "auto-create=false")
	subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	admin := administer(t, c)
	retries, unused := topic+".billing_retry.100", topic+".billing_retry.7200000"
	_, err := admin.DeleteTopics(t.Context(), retries, unused)
	require.NoError(t, err)
	for range 3 {
		require.ErrorContains(t, b.Ping(t.Context()), "topic "+retries+" was deleted")
	}
	require.Eventually(t, func() bool { return strings.Contains(log.String(), retries) }, patience, time.Millisecond)
	require.ErrorContains(t, b.Ping(t.Context()), "topic "+retries+" was deleted", "its reader has noticed it")
	require.NoError(t, operator.Apply(t.Context(), plan))
	require.NoError(t, b.Ping(t.Context()))
}

// The mere existence of topic "shop" used to keep the finished retries of topic "shop.orders": those of group
// "orders.billing" on topic "shop" would wait in the same topics. They are kept if that group has read it.
func TestClean_TopicsWithDots(t *testing.T) {
	t.Parallel()
	for title, tt := range map[string]struct {
		group string // that has read topic shop
		kept  bool
	}{
		"of no group":        {},
		"of another group":   {group: "orders.mail"},
		"of the group there": {group: "orders.billing", kept: true},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			admin := administer(t, c)
			_, err := admin.CreateTopic(t.Context(), 1, 1, nil, "shop")
			require.NoError(t, err)
			if tt.group != "" {
				read := kadm.Offsets{"shop": {0: {Topic: "shop", At: 1}}}
				require.NoError(t, admin.CommitAllOffsets(t.Context(), tt.group, read))
			}
			const topic = "shop.orders"
			b := open(t, c, "commit-interval=20ms", "order=key")
			messages := subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, keyed("1", "a"), keyed("2", "a")))
			retryIn(t, b, receive(t, messages), 0)
			for range 2 {
				receive(t, messages).Ack()
			}
			require.NoError(t, b.Close())
			begin, err := admin.ListStartOffsets(t.Context(), topic+".billing_retry.100", topic+".billing_retry.parked")
			require.NoError(t, err)
			for _, partitions := range begin {
				require.Equal(t, tt.kept, partitions[0].Offset == 0, partitions[0].Topic)
			}
		})
	}
}
