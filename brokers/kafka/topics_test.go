package kafka_test

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// hideTopic makes brokers deny that a topic exists in the first responses that name it.
func hideTopic(t *testing.T, c *kfake.Cluster, name string, answers int64) (left *atomic.Int64) {
	t.Helper()
	host, port, err := net.SplitHostPort(c.ListenAddrs()[0])
	require.NoError(t, err)
	number, err := strconv.ParseInt(port, 10, 32)
	require.NoError(t, err)
	left = new(atomic.Int64)
	left.Store(answers)
	c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked := r.(*kmsg.MetadataRequest)
		named := slices.ContainsFunc(asked.Topics, func(topic kmsg.MetadataRequestTopic) bool {
			return topic.Topic != nil && strings.Contains(*topic.Topic, name)
		})
		if !named || left.Add(-1) < 0 {
			return nil, nil, false
		}
		answer := asked.ResponseKind().(*kmsg.MetadataResponse)
		broker := kmsg.NewMetadataResponseBroker()
		broker.Host, broker.Port = host, int32(number)
		answer.Brokers = append(answer.Brokers, broker)
		for _, topic := range asked.Topics {
			unknown := kmsg.NewMetadataResponseTopic()
			unknown.Topic, unknown.ErrorCode = topic.Topic, kerr.UnknownTopicOrPartition.Code
			answer.Topics = append(answer.Topics, unknown)
		}
		return answer, nil, true
	})
	return left
}

// A broker learns of a new topic some time after the controller has created it. On a busy one this took longer than the
// client's own retries, and the subscription failed with "a retry topic is missing: open the broker with
// auto-create=true", although that was set.
func TestTopics_BrokerLearnsLateOfANewOne(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	left := hideTopic(t, c, "orders.billing_retry", 15) // more than the client's own six attempts
	_, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.Negative(t, left.Load(), "the topic was hidden, then visible")
}

// A redrive creates no topic, whatever the parameter is. The error advised to set it.
func TestTopics_MissingForARedrive(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t), "auto-create=true")
	m := newMessage("m", "")
	m.SetContext(envelope.WithExistingOnly(t.Context()))
	err := b.Publisher().Publish(name("orders"), m)
	require.ErrorIs(t, err, brokers.ErrUnroutable)
	require.ErrorContains(t, err, "missing: create it")
	require.NotContains(t, err.Error(), "open the broker with auto-create=true")
}
