package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/envelope"
)

// failing lets the cluster answer requests with an error, by what fill makes of them, as long as that is set.
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

// failCommits refuses every commit: a member of which nothing is committed when it goes is one that was killed.
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

// failJoins lets nobody into a group.
func failJoins(c *kfake.Cluster) *atomic.Pointer[kerr.Error] {
	return failing(c, func(_ *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse, code int16) { resp.ErrorCode = code })
}

// What the brokers refuse is an error to whoever publishes, reschedules or dead-letters, because a message is acked on
// their word.
func TestRefused_IsAnError(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	refusal := failProduces(c)
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", "")))
	retryIn(t, b, receiveID(t, messages, "0"), 0) // makes the retry topic
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
	m.Nack() // what a pipeline makes of these errors
	receiveID(t, messages, "1").Ack()
}

// A group that the coordinator refuses is joined again, with pauses that grow: refusals make no hot loop, and end by
// themselves.
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
