package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
)

// A busy server may take as long to make a topic as it may take for any answer. Sarama's own 3 s ended the
// subscription, and with it the router of a service that starts.
func TestSubscribe_ABusyServerMakesTheTopic(t *testing.T) {
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
