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

// failProduces lets the cluster refuse every record with an error as long as that is set.
func failProduces(c *kfake.Cluster) *atomic.Pointer[kerr.Error] {
	var failing atomic.Pointer[kerr.Error]
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		err := failing.Load()
		if err == nil {
			return nil, nil, false
		}
		req := r.(*kmsg.ProduceRequest)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, topic := range req.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				one := kmsg.NewProduceResponseTopicPartition()
				one.Partition, one.ErrorCode = p.Partition, err.Code
				answer.Partitions = append(answer.Partitions, one)
			}
			resp.Topics = append(resp.Topics, answer)
		}
		return resp, nil, true
	})
	return &failing
}

// What the brokers refuse is an error to whoever publishes, reschedules or dead-letters, because a message is acked on their word.
func TestRefused_IsAnError(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	failing := failProduces(c)
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", "")))
	retryIn(t, b, receiveID(t, messages, "0"), 0) // makes the retry topic
	receiveID(t, messages, "0").Ack()
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	m := receiveID(t, messages, "1")
	origin, _ := envelope.OriginFrom(m.Context())

	failing.Store(kerr.TopicAuthorizationFailed)
	require.ErrorContains(t, b.Reschedule(t.Context(), *origin, m.Copy(), 0), kerr.TopicAuthorizationFailed.Message)
	letter := &envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "exhausted"}
	require.ErrorContains(t, b.DeadLetter(t.Context(), letter), kerr.TopicAuthorizationFailed.Message)
	require.ErrorContains(t, b.Publisher().Publish(topic, newMessage("2", "")), kerr.TopicAuthorizationFailed.Message)
	failing.Store(nil)
	m.Nack() // what a pipeline makes of these errors
	receiveID(t, messages, "1").Ack()
}

// A group that the coordinator refuses is joined again, with pauses that grow: refusals make no hot loop, and end by themselves.
func TestGroup_RefusalsMakeNoHotLoop(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var refuse atomic.Bool
	refuse.Store(true)
	joins := make(chan time.Time, 1024)
	c.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !refuse.Load() {
			return nil, nil, false
		}
		joins <- time.Now()
		resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.GroupAuthorizationFailed.Code
		return resp, nil, true
	})
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	first := <-joins
	var last time.Time
	for range 3 {
		last = <-joins
	}
	require.GreaterOrEqual(t, last.Sub(first), 600*time.Millisecond, "the pauses are 100, 200 and 400 ms")
	refuse.Store(false)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, messages, "1").Ack()
}
