package kafka_test

import (
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/logbuffer"
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

func addressOf(t *testing.T, c *kfake.Cluster) *net.TCPAddr {
	t.Helper()
	address, err := net.ResolveTCPAddr("tcp", c.ListenAddrs()[0])
	require.NoError(t, err)
	return address
}

// A service that subscribes while its broker restarts, or while its topic has no leader, used to end.
func TestSubscribe_WhileTheServerIsNotReady(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, c *kfake.Cluster) (end func()){
		"restarts": func(t *testing.T, c *kfake.Cluster) func() {
			t.Helper()
			address := addressOf(t, c)
			c.Close()
			return func() { cluster(t, kfake.Ports(address.Port)) }
		},
		"no leader": func(t *testing.T, c *kfake.Cluster) func() {
			t.Helper()
			var elected atomic.Bool
			address := addressOf(t, c)
			c.ControlKey(kmsg.Metadata.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				asked := r.(*kmsg.MetadataRequest)
				if len(asked.Topics) == 0 || elected.Load() {
					return nil, nil, false
				}
				answer := asked.ResponseKind().(*kmsg.MetadataResponse)
				node := kmsg.NewMetadataResponseBroker()
				node.Host, node.Port = "127.0.0.1", int32(address.Port)
				answer.Brokers = append(answer.Brokers, node)
				for _, topic := range asked.Topics {
					one := kmsg.NewMetadataResponseTopic()
					one.Topic, one.ErrorCode = topic.Topic, kerr.LeaderNotAvailable.Code
					answer.Topics = append(answer.Topics, one)
				}
				return answer, nil, true
			})
			return func() { elected.Store(true) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, log := cluster(t, kfake.SeedTopics(1, "orders")), &logbuffer.Buffer{}
			b, err := brokers.OpenConfig(t.Context(), brokers.Config{
				URL: urlOf(c, "group=billing"), Logger: slog.New(slog.NewTextHandler(log, nil)),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			end, subscribed := begin(t, c), make(chan error, 1)
			go func() {
				_, err := b.Subscriber().Subscribe(t.Context(), "orders")
				subscribed <- err
			}()
			require.Eventually(t, func() bool {
				return len(subscribed) > 0 || strings.Contains(log.String(), "cannot consume yet")
			}, 2*time.Minute, time.Millisecond)
			end()
			require.NoError(t, <-subscribed)
		})
	}
}
