package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// refuseTopics makes the cluster refuse to create topics while refuse returns an error.
func refuseTopics(c *kfake.Cluster, refuse func(asked *kmsg.CreateTopicsRequest) *kerr.Error) {
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked := r.(*kmsg.CreateTopicsRequest)
		refused := refuse(asked)
		if refused == nil {
			return nil, nil, false
		}
		answer := asked.ResponseKind().(*kmsg.CreateTopicsResponse)
		for i := range asked.Topics {
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = asked.Topics[i].Topic, refused.Code
			answer.Topics = append(answer.Topics, topic)
		}
		return answer, nil, true
	})
}

// Creating a topic on a busy server may take as long as any other request. sarama's own limit of 3 s used to end the
// subscription, and with it the router of a starting service. While all nodes of a cluster are fenced, it has too few
// for any number of replicas.
func TestSubscribe_WhileTopicsAreRefused(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Second
	fenced := 5
	for name, refuse := range map[string]func(asked *kmsg.CreateTopicsRequest) *kerr.Error{
		"busy server": func(asked *kmsg.CreateTopicsRequest) *kerr.Error {
			if time.Duration(asked.TimeoutMillis)*time.Millisecond < takes {
				return kerr.RequestTimedOut
			}
			return nil
		},
		"fenced nodes": func(*kmsg.CreateTopicsRequest) *kerr.Error {
			if fenced--; fenced >= 0 {
				return kerr.InvalidReplicationFactor
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			refuseTopics(c, refuse)
			b, err := brokers.Open(t.Context(), urlOf(c, "group=billing"))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			_, err = b.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
		})
	}
	t.Cleanup(func() { require.Negative(t, fenced, "the request was refused first") })
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
