package kafka_test

import (
	"encoding/base64"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/internal/logbuffer"
)

// commitAs commits a position of the group as another client does.
func commitAs(t *testing.T, c *kfake.Cluster, topic string, at int64, metadata string) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: at, LeaderEpoch: -1, Metadata: metadata})
	require.NoError(t, administer(t, c).CommitAllOffsets(t.Context(), "billing", offsets))
}

// Any client may store metadata with a position. That of another client was read as ours: with an @ in it, the topic
// was considered recreated, and all of it was handled again; if it was base64, records could be skipped.
func TestOffset_MetadataOfAnotherClient(t *testing.T) {
	t.Parallel()
	for title, metadata := range map[string]string{
		"address": "ops@example.test", "like a tag": "ops@prod-cluster",
		"like a note": base64.RawStdEncoding.EncodeToString([]byte{0, 5}),
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			topic := name("orders")
			b := open(t, c)
			require.NoError(t, b.Publisher().Publish(topic, newMessage("1", ""), newMessage("2", ""), newMessage("3", "")))
			commitAs(t, c, topic, 1, metadata)
			messages := subscribe(t, b, topic)
			receiveID(t, messages, "2").Ack()
			receiveID(t, messages, "3").Ack()
			nothingMore(t, messages)
		})
	}
}

// If a parking or retry topic ends before the group's position, as after an unclean election, a member with order=key
// tried to read it from there without end and without a log line, and handled nothing of the partition.
func TestOrder_PositionBeyondTheEnd(t *testing.T) {
	t.Parallel()
	for _, which := range []string{"parked", "retry"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			topic := name("orders")
			params := []string{"order=key", "concurrency=4"}
			b := open(t, c, params...)
			of := parkingTopic(t, b, topic)
			if which == "retry" {
				of = topic + ".billing_retry.100"
			}
			subscribe(t, b, topic)
			require.NoError(t, b.Close())
			commitAs(t, c, of, 100, "")
			b = open(t, c, params...)
			messages := subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, keyed("1", "a")))
			receiveID(t, messages, "1").Ack()
		})
	}
}

// offset=newest is for the records before the group began. Messages in partitions that were added later were
// skipped, if they were published before a member had found them.
func TestOffset_NewestMissesNothingOfAddedPartitions(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "offset=newest", "session-timeout=20s", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", "")))
	receiveID(t, messages, "0").Ack()
	_, err := administer(t, c).UpdatePartitions(t.Context(), 3, topic)
	require.NoError(t, err)
	for p := range int32(3) {
		produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: p, Value: sarama.StringEncoder("x")})
	}
	rebalance(c)
	for range 3 {
		receive(t, messages).Ack()
	}
	nothingMore(t, messages)
}

// A cluster may allow less metadata than our notes need (offset.metadata.max.bytes): as long as a note was needed, no
// position was stored.
func TestCommit_NotesAreTooLargeForTheCluster(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	c.ControlKey(kmsg.OffsetCommit.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.OffsetCommitRequest)
		resp := req.ResponseKind().(*kmsg.OffsetCommitResponse)
		bad := false
		for _, topic := range req.Topics {
			answer := kmsg.NewOffsetCommitResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				one := kmsg.NewOffsetCommitResponseTopicPartition()
				one.Partition = p.Partition
				if p.Metadata != nil && len(*p.Metadata) > 13 { // a tag
					bad = true
					one.ErrorCode = kerr.OffsetMetadataTooLarge.Code
				}
				answer.Partitions = append(answer.Partitions, one)
			}
			resp.Topics = append(resp.Topics, answer)
		}
		return resp, nil, bad
	})
	topic := name("orders")
	b := open(t, c, "concurrency=4", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", ""), newMessage("2", ""), newMessage("3", "")))
	var held *message.Message
	for range 3 {
		if m := receive(t, messages); m.UUID == "2" {
			held = m
		} else {
			m.Ack()
		}
	}
	require.Eventually(t, func() bool {
		offsets, err := administer(t, c).FetchOffsets(t.Context(), "billing")
		require.NoError(t, err)
		o, _ := offsets.Lookup(topic, 0)
		return o.At == 1
	}, patience, 10*time.Millisecond)
	held.Ack()
}

// A member whose generation has ended lost its partitions, but repeated their last commits for ten seconds before it
// joined again.
func TestGroup_EndedGenerationHoldsUpNothing(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	log := &logbuffer.Buffer{}
	b := openLogging(t, c, log, "commit-interval=1m")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, messages, "1").Ack()
	done := make(chan struct{})
	join := sync.OnceFunc(func() { close(done) })
	refusal := failCommits(c)
	refusal.Store(kerr.IllegalGeneration)
	c.ControlKey(kmsg.Heartbeat.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		resp := r.ResponseKind().(*kmsg.HeartbeatResponse)
		resp.ErrorCode = kerr.IllegalGeneration.Code
		return resp, nil, true
	})
	c.ControlKey(kmsg.JoinGroup.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		refusal.Store(nil)
		join()
		return nil, nil, false
	})
	<-done
	receiveID(t, messages, "1").Ack() // its commit was refused
	require.Contains(t, log.String(), "the group has dropped this member", "it did not try until its time was over")
}

// If an operator deletes a retry topic, the messages in it are lost, but those of their keys that waited behind them
// waited until the member left the group.
func TestOrder_ContinuesAfterItsRetryTopicWasDeleted(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "order=key", "concurrency=4", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("b1", "b")))
	retryIn(t, b, receiveID(t, messages, "b1"), time.Minute)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a")))
	retryIn(t, b, receiveID(t, messages, "a1"), time.Minute)
	waitStored(t, c, parkingTopic(t, b, topic), 1)
	_, err := administer(t, c).DeleteTopics(t.Context(), topic+".billing_retry.60000")
	require.NoError(t, err)
	for {
		m := receive(t, messages)
		m.Ack()
		if m.UUID == "a2" {
			return
		}
	}
}

// The end of a transaction takes an offset, too. A topic that ended with one used to have a lag for good, and so alerts
// on the lag fired; after an aborted one, all of its records were read again by every next owner.
func TestCommit_PassesTheEndOfATransaction(t *testing.T) {
	t.Parallel()
	for title, try := range map[string]kgo.TransactionEndTry{"committed": kgo.TryCommit, "aborted": kgo.TryAbort} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, kfake.SeedTopics(1, "orders"))
			client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.TransactionalID("shop"))
			require.NoError(t, err)
			defer client.Close()
			require.NoError(t, client.BeginTransaction())
			require.NoError(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "orders"}).FirstErr())
			require.NoError(t, client.EndTransaction(t.Context(), try))
			messages := subscribe(t, open(t, c, "commit-interval=20ms"), "orders")
			if try == kgo.TryCommit {
				receive(t, messages).Ack()
			}
			require.Eventually(t, func() bool {
				lags, err := kadm.NewClient(client).Lag(t.Context(), "billing")
				at, found := lags["billing"].Lag.Lookup("orders", 0)
				return err == nil && found && at.Lag == 0 && at.Commit.At > 0
			}, patience, 10*time.Millisecond)
		})
	}
}

// Retries that were removed before they were due, as by a retention that is shorter than the group was down, were
// missing, and no log said so.
func TestRetry_RemovedOnesAreLogged(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic, log := name("orders"), &logbuffer.Buffer{}
	b := open(t, c)
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	retryIn(t, b, receive(t, messages), 0)
	receive(t, messages).Ack()
	require.NoError(t, b.Close())
	retries := topic + ".billing_retry.100"
	for range 2 {
		produce(t, c, &sarama.ProducerMessage{Topic: retries})
	}
	_, err := administer(t, c).DeleteRecords(t.Context(), kadm.Offsets{retries: {0: {Topic: retries, At: 3}}})
	require.NoError(t, err)
	subscribe(t, openLogging(t, c, log), topic)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "gone=2") }, patience, time.Millisecond)
}
