package kafka_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// refuseTopics makes the cluster refuse to create topics while refuse returns an error.
func refuseTopics(c *kfake.Cluster, refuse func() *kerr.Error) {
	c.ControlKey(kmsg.CreateTopics.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		err := refuse()
		if err == nil {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, topic := range r.(*kmsg.CreateTopicsRequest).Topics {
			refused := kmsg.NewCreateTopicsResponseTopic()
			refused.Topic, refused.ErrorCode = topic.Topic, err.Code
			resp.Topics = append(resp.Topics, refused)
		}
		return resp, nil, true
	})
}

// answers returns err n times, and then nil.
func answers(err *kerr.Error, times int64) (next func() *kerr.Error, left *atomic.Int64) {
	left = new(atomic.Int64)
	left.Store(times)
	return func() *kerr.Error {
		if left.Add(-1) < 0 {
			return nil
		}
		return err
	}, left
}

// A node that gets no processor time for its broker.session.timeout.ms is fenced. While all nodes are fenced, and while
// a cluster starts or elects a leader, it refuses to create topics. Operations that needed one used to fail at once,
// although it could have been created a second later.
func TestTopics_ClusterIsFencedForAWhile(t *testing.T) {
	t.Parallel()
	type action func(ctx context.Context, b *kafka.Broker, topic string) error
	for doing, act := range map[string]action{
		"subscribe": func(ctx context.Context, b *kafka.Broker, topic string) error {
			_, err := b.Subscriber().Subscribe(ctx, topic)
			return err
		},
		"set up": func(_ context.Context, b *kafka.Broker, topic string) error {
			return b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topic)
		},
		"publish": func(_ context.Context, b *kafka.Broker, topic string) error {
			return b.Publisher().Publish(topic, newMessage("1", ""))
		},
		"apply": func(ctx context.Context, b *kafka.Broker, topic string) error { return b.Apply(ctx, b.Plan(topic)) },
	} {
		for _, refusal := range []*kerr.Error{
			kerr.InvalidReplicationFactor, kerr.BrokerNotAvailable, kerr.LeaderNotAvailable, kerr.CoordinatorNotAvailable,
			kerr.NotController, kerr.RequestTimedOut, kerr.ThrottlingQuotaExceeded,
		} {
			t.Run(doing+"/"+refusal.Message, func(t *testing.T) {
				t.Parallel()
				c := cluster(t)
				b := open(t, c)
				next, left := answers(refusal, 3)
				refuseTopics(c, next)
				require.NoError(t, act(t.Context(), b, "orders"))
				require.NoError(t, b.Ping(t.Context()))
				require.Negative(t, left.Load(), "the request was refused first, then accepted")
			})
		}
	}
}

// An existing topic is used even if the node that describes it does not know its leader yet.
func TestTopics_ExistingWithoutALeaderYet(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "orders"))
	var denied atomic.Int64
	denied.Store(5)
	c.ControlKey(kmsg.Metadata.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		asked := r.(*kmsg.MetadataRequest)
		if len(asked.Topics) == 0 || denied.Add(-1) < 0 {
			return nil, nil, false
		}
		return withoutLeader(asked), nil, true
	})
	b := open(t, c, "auto-create=false")
	require.NoError(t, b.Publisher().Publish("orders", newMessage("1", "")))
}

func withoutLeader(asked *kmsg.MetadataRequest) *kmsg.MetadataResponse {
	answer := asked.ResponseKind().(*kmsg.MetadataResponse)
	for _, topic := range asked.Topics {
		one := kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = topic.Topic, kerr.LeaderNotAvailable.Code
		answer.Topics = append(answer.Topics, one)
	}
	return answer
}

// A replication factor above the number of nodes, including fenced ones, is a mistake in the configuration, and waiting
// does not help.
func TestTopics_MoreReplicasThanNodes(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "replication=3")
	var asked atomic.Int32
	refuseTopics(c, func() *kerr.Error { asked.Add(1); return nil })
	_, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, kerr.InvalidReplicationFactor)
	require.ErrorContains(t, err, "replication=3 needs as many nodes, and the cluster has 1: lower replication, or add")
	require.Less(t, asked.Load(), int32(10), "the request is not repeated as long as for fenced nodes")
}

// The caller's context bounds the wait, and the error is the cluster's answer.
func TestTopics_FencedForLongerThanTheCaller(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	ended := errors.New("the caller stopped waiting")
	ctx, cancel := context.WithCancelCause(t.Context())
	var refused atomic.Int32
	refuseTopics(c, func() *kerr.Error {
		if refused.Add(1) == 2 { // the first refusal has arrived
			cancel(ended)
		}
		return kerr.InvalidReplicationFactor
	})
	_, err := b.Subscriber().Subscribe(ctx, "orders")
	require.ErrorIs(t, err, kerr.InvalidReplicationFactor)
	require.ErrorIs(t, err, ended)
}

// Partitions that are added to a topic are added to its retry topics, even if the cluster is fenced at that moment.
func TestTopic_GrowsWhileTheClusterIsFenced(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	topic := name("orders")
	subscribe(t, b, topic)
	require.NoError(t, b.Close())
	_, err := administer(t, c).UpdatePartitions(t.Context(), 3, topic)
	require.NoError(t, err)
	next, _ := answers(kerr.InvalidReplicationFactor, 3)
	c.ControlKey(kmsg.CreatePartitions.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		refusal := next()
		if refusal == nil {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.CreatePartitionsResponse)
		for _, topic := range r.(*kmsg.CreatePartitionsRequest).Topics {
			one := kmsg.NewCreatePartitionsResponseTopic()
			one.Topic, one.ErrorCode = topic.Topic, refusal.Code
			resp.Topics = append(resp.Topics, one)
		}
		return resp, nil, true
	})
	b = open(t, c)
	subscribe(t, b, topic)
	details, err := administer(t, c).ListTopics(t.Context())
	require.NoError(t, err)
	for name, topic := range details {
		require.Len(t, topic.Partitions, 3, name)
	}
}

// A new cluster has no coordinators until it has created the topic of positions, which takes seconds on a busy machine,
// and a coordinator that has moved loads it first.
func TestSubscribe_CoordinatorIsNotReadyYet(t *testing.T) {
	t.Parallel()
	for _, refusal := range []*kerr.Error{kerr.CoordinatorNotAvailable, kerr.CoordinatorLoadInProgress} {
		t.Run(refusal.Message, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			next, left := answers(refusal, 20)
			c.ControlKey(kmsg.FindCoordinator.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				refused := next()
				if refused == nil {
					return nil, nil, false
				}
				resp := r.ResponseKind().(*kmsg.FindCoordinatorResponse)
				for _, key := range r.(*kmsg.FindCoordinatorRequest).CoordinatorKeys {
					one := kmsg.NewFindCoordinatorResponseCoordinator()
					one.Key, one.ErrorCode = key, refused.Code
					resp.Coordinators = append(resp.Coordinators, one)
				}
				return resp, nil, true
			})
			subscribe(t, open(t, c), "orders")
			require.Negative(t, left.Load(), "the request was refused first, then accepted")
		})
	}
}

// A service that subscribes while its broker restarts used to end.
func TestSubscribe_WhileTheBrokerRestarts(t *testing.T) {
	t.Parallel()
	c, log := cluster(t), &logbuffer.Buffer{}
	b, err := brokers.OpenConfig(t.Context(), brokers.Config{
		URL: urlOf(c, "group=billing"), Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	address, err := net.ResolveTCPAddr("tcp", c.ListenAddrs()[0])
	require.NoError(t, err)
	c.Close()
	subscribed := make(chan error, 1)
	var messages <-chan *message.Message
	go func() {
		var err error
		messages, err = b.Subscriber().Subscribe(t.Context(), "orders")
		subscribed <- err
	}()
	require.Eventually(t, func() bool {
		return len(subscribed) > 0 || strings.Contains(log.String(), "cannot consume yet")
	}, patience, time.Millisecond)
	cluster(t, kfake.Ports(address.Port))
	require.NoError(t, <-subscribed)
	require.NoError(t, b.Publisher().Publish("orders", newMessage("1", "")))
	receive(t, messages).Ack()
}
