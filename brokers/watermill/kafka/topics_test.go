package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// Creating a topic on a busy server may take as long as any other request. sarama's own limit of 3 s used to end the
// subscription, and with it the router of a starting service.
func TestSubscribe_ABusyServerCreatesTheTopic(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Second
	c := cluster(t)
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked := r.(*kmsg.CreateTopicsRequest)
		if time.Duration(asked.TimeoutMillis)*time.Millisecond >= takes {
			return nil, nil, false
		}
		answer := asked.ResponseKind().(*kmsg.CreateTopicsResponse)
		for i := range asked.Topics {
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = asked.Topics[i].Topic, kerr.RequestTimedOut.Code
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
	b, err := brokers.Open(t.Context(), urlOf(c, "group=billing"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
}

// While all nodes of a cluster are fenced, it has too few for any number of replicas. A service that started meanwhile
// used to end.
func TestSubscribe_ClusterIsFencedForAWhile(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var left atomic.Int32
	left.Store(5)
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if left.Add(-1) < 0 {
			return nil, nil, false
		}
		asked := r.(*kmsg.CreateTopicsRequest)
		answer := asked.ResponseKind().(*kmsg.CreateTopicsResponse)
		for i := range asked.Topics {
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = asked.Topics[i].Topic, kerr.InvalidReplicationFactor.Code
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
	b, err := brokers.Open(t.Context(), urlOf(c, "group=billing"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.Negative(t, left.Load())
}

// A missing topic is created after the first response that it does not exist, instead of after all that sarama requests
// within 750 ms.
func TestSubscribe_CreatesAMissingTopicAtOnce(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	var answers, made atomic.Int32 // how often the topic was missing, and how often not
	c.ControlKey(kmsg.Metadata.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range r.(*kmsg.MetadataRequest).Topics {
			if *topic.Topic == "orders" && made.Load() == 0 {
				answers.Add(1)
			}
		}
		return nil, nil, false
	})
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if r.(*kmsg.CreateTopicsRequest).Topics[0].Topic == "orders" {
			made.Add(1)
		}
		return nil, nil, false
	})
	b, err := brokers.Open(t.Context(), urlOf(c, "group=billing"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.EqualValues(t, 1, made.Load())
	require.EqualValues(t, 1, answers.Load())
}
