package kafka_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// failing makes the cluster answer requests with an error, which fill sets in the response, while it is set.
func failing[Req kmsg.Request, Resp kmsg.Response](c *kfake.Cluster,
	fill func(req Req, resp Resp, code int16),
) *atomic.Pointer[kerr.Error] {
	var refusal atomic.Pointer[kerr.Error]
	var asked Req
	c.ControlKey(asked.Key(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		err := refusal.Load()
		if err == nil {
			return nil, nil, false
		}
		resp := r.ResponseKind()
		fill(r.(Req), resp.(Resp), err.Code)
		return resp, nil, true
	})
	return &refusal
}

// failProduces refuses every record.
func failProduces(c *kfake.Cluster) *atomic.Pointer[kerr.Error] {
	return failing(c, func(req *kmsg.ProduceRequest, resp *kmsg.ProduceResponse, code int16) {
		for _, topic := range req.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				one := kmsg.NewProduceResponseTopicPartition()
				one.Partition, one.ErrorCode = p.Partition, code
				answer.Partitions = append(answer.Partitions, one)
			}
			resp.Topics = append(resp.Topics, answer)
		}
	})
}

// failCommits refuses every commit: a member that leaves without committing is like one that was killed.
func failCommits(c *kfake.Cluster) *atomic.Pointer[kerr.Error] {
	return failing(c, func(req *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, code int16) {
		for _, topic := range req.Topics {
			answer := kmsg.NewOffsetCommitResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				one := kmsg.NewOffsetCommitResponseTopicPartition()
				one.Partition, one.ErrorCode = p.Partition, code
				answer.Partitions = append(answer.Partitions, one)
			}
			resp.Topics = append(resp.Topics, answer)
		}
	})
}

// failJoins refuses every member of a group.
func failJoins(c *kfake.Cluster) *atomic.Pointer[kerr.Error] {
	return failing(c, func(_ *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse, code int16) { resp.ErrorCode = code })
}

// If the brokers refuse a record, the call that publishes, reschedules or dead-letters returns an error, because a
// message is acked only after their confirmation.
func TestRefused_IsAnError(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	refusal := failProduces(c)
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", "")))
	retryIn(t, b, receiveID(t, messages, "0"), 0) // creates the retry topic
	receiveID(t, messages, "0").Ack()
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	m := receiveID(t, messages, "1")
	origin, _ := envelope.OriginFrom(m.Context())

	refusal.Store(kerr.TopicAuthorizationFailed)
	require.ErrorContains(t, b.Reschedule(t.Context(), *origin, m.Copy(), 0), kerr.TopicAuthorizationFailed.Message)
	letter := &envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "exhausted"}
	require.ErrorContains(t, b.DeadLetter(t.Context(), letter), kerr.TopicAuthorizationFailed.Message)
	require.ErrorContains(t, b.Publisher().Publish(topic, newMessage("2", "")), kerr.TopicAuthorizationFailed.Message)
	refusal.Store(nil)
	m.Nack() // as a pipeline reacts to these errors
	receiveID(t, messages, "1").Ack()
}

// If the coordinator refuses a member, it joins again after growing pauses: refusals cause no hot loop, and recovery is
// automatic.
func TestGroup_RefusalsMakeNoHotLoop(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	joins := make(chan time.Time, 1024)
	refusal := failing(c, func(_ *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse, code int16) {
		joins <- time.Now()
		resp.ErrorCode = code
	})
	refusal.Store(kerr.GroupAuthorizationFailed)
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	first := <-joins
	var last time.Time
	for range 3 {
		last = <-joins
	}
	require.GreaterOrEqual(t, last.Sub(first), 600*time.Millisecond, "the pauses are 100, 200 and 400 ms")
	refusal.Store(nil)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, messages, "1").Ack()
}

// If the coordinator refuses the position of one partition, a client never reads that partition again: it used to be
// stuck until the next rebalance.
func TestGroup_RefusedPositionOfAPartition(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.DefaultNumPartitions(2))
	refusal := failing(c, func(req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse, code int16) {
		for _, g := range req.Groups {
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group = g.Group
			for _, topic := range g.Topics {
				answer := kmsg.NewOffsetFetchResponseGroupTopic()
				answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
				for _, p := range topic.Partitions {
					one := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					one.Partition, one.Offset = p, -1
					if p == 1 {
						one.ErrorCode = code
					}
					answer.Partitions = append(answer.Partitions, one)
				}
				group.Topics = append(group.Topics, answer)
			}
			resp.Groups = append(resp.Groups, group)
		}
	})
	refusal.Store(kerr.TopicAuthorizationFailed)
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	for p := range int32(2) {
		produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: p, Value: sarama.StringEncoder("1")})
		m := receive(t, messages)
		origin, _ := envelope.OriginFrom(m.Context())
		require.Equal(t, p, *origin.Partition)
		m.Ack()
		refusal.Store(nil)
	}
}

// A broker refuses a fetch at once if the user may not read the topic any more, if a batch is corrupt or if it does not
// lead the partition, and the client fetches again at once: that was hundreds or thousands of requests a second, and as
// many log lines.
func TestFetch_RefusalsMakeNoHotLoop(t *testing.T) {
	t.Parallel()
	for _, refusing := range []*kerr.Error{
		kerr.TopicAuthorizationFailed, kerr.UnsupportedCompressionType, kerr.CorruptMessage, kerr.NotLeaderForPartition,
		kerr.UnknownTopicOrPartition,
	} {
		t.Run(refusing.Message, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			var fetches atomic.Int64
			refusal := failing(c, func(req *kmsg.FetchRequest, resp *kmsg.FetchResponse, code int16) {
				answerEmpty(req, resp, code)
				if len(req.Topics) == 0 || byGroup(&req.Topics[0]) { // one of a session may name none
					fetches.Add(1)
				}
			})
			b := open(t, c)
			topic := name("orders")
			messages := subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
			receiveID(t, messages, "1").Ack()

			refusal.Store(refusing)
			require.Eventually(t, func() bool { return fetches.Load() > 0 }, patience, time.Millisecond)
			require.Never(t, func() bool { return fetches.Load() >= 50 }, time.Second, 10*time.Millisecond)
			refusal.Store(nil)
			require.NoError(t, b.Publisher().Publish(topic, newMessage("2", "")))
			receiveID(t, messages, "2").Ack()
		})
	}
}

// failReads refuses the fetches of topics whose name contains part.
func failReads(c *kfake.Cluster, part string) *atomic.Pointer[kerr.Error] {
	var refusal atomic.Pointer[kerr.Error]
	c.ControlKey(kmsg.Fetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req, err := r.(*kmsg.FetchRequest), refusal.Load()
		if err == nil || len(req.Topics) == 0 || !strings.Contains(req.Topics[0].Topic, part) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		answerEmpty(req, resp, err.Code)
		return resp, nil, true
	})
	return &refusal
}

// With order=key nothing of a partition is handled before its blocked keys are known, and nothing of a key before its
// parked messages: if these could not be read, the service stood still and its log was empty.
func TestOrder_RefusedReadsAreLogged(t *testing.T) {
	t.Parallel()
	for title, test := range map[string]struct {
		refused string // part of the topic's name
		restart bool   // of the service, while the fetches are refused
		log     string
	}{
		"parking topic at the start": {"_retry.parked", true, "a partition cannot be read"},
		"retry topic at the start":   {"_retry.500", true, "a partition cannot be read"},
		"parked message":             {"_retry.parked", false, "a record cannot be read"},
	} {
		for _, refusing := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.NotLeaderForPartition} {
			t.Run(title+", "+refusing.Message, func(t *testing.T) {
				t.Parallel()
				c, log, topic := cluster(t), &logbuffer.Buffer{}, name("orders")
				refusal := failReads(c, test.refused)
				b := openLogging(t, c, log, "order=key", "concurrency=4", "commit-interval=20ms")
				messages := subscribe(t, b, topic)
				require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a")))
				retryIn(t, b, receiveID(t, messages, "a1"), 500*time.Millisecond)
				admin := administer(t, c)
				require.Eventually(t, func() bool { // the parked ones are settled: the topic has been read up to here
					offsets, err := admin.FetchOffsets(t.Context(), "billing")
					require.NoError(t, err)
					main, _ := offsets.Lookup(topic, 0)
					return main.At == 3
				}, patience, 5*time.Millisecond)
				refusal.Store(refusing)
				if test.restart {
					require.NoError(t, b.Close())
					b = openLogging(t, c, log, "order=key", "concurrency=4", "commit-interval=20ms")
					messages = subscribe(t, b, topic)
				} else {
					receiveID(t, messages, "a1").Ack()
				}
				require.Eventually(t, func() bool {
					for line := range strings.Lines(log.String()) {
						if strings.Contains(line, test.log) && strings.Contains(line, topic+".billing"+test.refused) &&
							strings.Contains(line, refusing.Message) {
							return true
						}
					}
					return false
				}, patience, 5*time.Millisecond)
				refusal.Store(nil)
				require.NoError(t, b.Publisher().Publish(topic, keyed("a4", "a")))
				if test.restart {
					receiveID(t, messages, "a1").Ack()
				}
				for _, id := range []string{"a2", "a3", "a4"} {
					receiveID(t, messages, id).Ack()
				}
			})
		}
	}
}

// Depths returns the coordinator's refusal: it used to ask again until its context ended, which may be never.
func TestDepths_RefusedPositions(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	refusal := failing(c, func(req *kmsg.OffsetFetchRequest, resp *kmsg.OffsetFetchResponse, code int16) {
		resp.ErrorCode = code
		for _, g := range req.Groups {
			group := kmsg.NewOffsetFetchResponseGroup()
			group.Group, group.ErrorCode = g.Group, code
			resp.Groups = append(resp.Groups, group)
		}
	})
	b := open(t, c, "order=key")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, messages, "1").Ack()
	refusal.Store(kerr.GroupAuthorizationFailed)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := b.Depths(ctx)
	require.ErrorContains(t, err, kerr.GroupAuthorizationFailed.Message)
}
