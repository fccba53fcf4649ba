package kafka

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers/driver"
)

// newCommitter returns the committer of a group without members, in virtual time, and its cluster, which has a topic
// "kept".
func newCommitter(t *testing.T) (*committer, *kfake.Cluster) {
	t.Helper()
	var network kfake.VirtualNetwork
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(19092), kfake.ListenFn(network.Listen),
		kfake.SeedTopics(1, "kept"))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(network.DialContext), byName(),
		kgo.DisableClientMetrics())
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &committer{group: "billing", topics: &topics{client: client, admin: kadm.NewClient(client)}}, cluster
}

func noMember() (id string, generation int32) { return "", -1 }

func settledPoint(topic string, offset int64) point {
	return point{topicPartition{topic, 0}, newTracker(position{offset: offset, fresh: true}, 10), topicID{}}
}

func storedAt(t *testing.T, c *committer, topic string) int64 {
	t.Helper()
	at := topicPartition{topic, 0}
	found, err := c.topics.committed(t.Context(), c.group, []topicPartition{at})
	require.NoError(t, err)
	return found[at].offset
}

// The last commit of a partition whose topic was deleted used to take ten seconds, in Close and when the topic was
// deleted while it was consumed. There is nothing left to store, and the other commits are not affected.
func TestCommit_LastDoesNotWaitForATopicThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCommitter(t)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), commitTimeout)
		defer cancel()
		gone, kept := settledPoint("gone", 3), settledPoint("kept", 5)
		require.NoError(t, c.last(ctx, noMember, []point{gone, kept}))
		require.Less(t, time.Since(began), time.Second)
		require.EqualValues(t, 5, storedAt(t, c, "kept"))
	})
}

// A coordinator may learn of a topic later than the rest of the cluster.
func TestCommit_LastIsRetriedUntilTheCoordinatorKnowsTheTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, cluster := newCommitter(t)
		var lies atomic.Int32
		lies.Store(8)
		cluster.ControlKey(kmsg.OffsetCommit.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			if lies.Add(-1) < 0 {
				return nil, nil, false
			}
			resp := r.ResponseKind().(*kmsg.OffsetCommitResponse)
			for _, asked := range r.(*kmsg.OffsetCommitRequest).Topics {
				topic := kmsg.NewOffsetCommitResponseTopic()
				topic.Topic = asked.Topic
				for _, p := range asked.Partitions {
					one := kmsg.NewOffsetCommitResponseTopicPartition()
					one.Partition, one.ErrorCode = p.Partition, kerr.UnknownTopicOrPartition.Code
					topic.Partitions = append(topic.Partitions, one)
				}
				resp.Topics = append(resp.Topics, topic)
			}
			return resp, nil, true
		})
		ctx, cancel := context.WithTimeout(t.Context(), commitTimeout)
		defer cancel()
		require.NoError(t, c.last(ctx, noMember, []point{settledPoint("kept", 5)}))
		require.Negative(t, lies.Load())
		require.EqualValues(t, 5, storedAt(t, c, "kept"))
	})
}

// A retry topic that was deleted and not recreated used to limit the commits of all others to one per second.
func TestCommit_DoesNotWaitForATopicThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCommitter(t)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), commitTimeout)
		defer cancel()
		points := func() []point { return []point{settledPoint("kept", 5), settledPoint("gone", 3)} }
		require.True(t, isGone(c.commit(ctx, noMember, points, false)))
		require.Less(t, time.Since(began), time.Millisecond)
		require.EqualValues(t, 5, storedAt(t, c, "kept"))
	})
}

// A regular commit that waited for the last commit of a partition stored that partition's position once more, if it was
// one that stores positions which have not moved. By then the next owner may have been further.
func TestCommit_OfAPartitionEndsWithItsLastCommit(t *testing.T) {
	c := &committer{}
	points := func() []point {
		require.False(t, c.mu.TryLock(), "read while another commit may be in flight")
		return nil
	}
	require.NoError(t, c.commit(t.Context(), noMember, points, true))
}

// The positions of a deleted retry topic used to be applied to the recreated one: as many messages that waited there
// were deleted, if its reader, holding a record of the old one, did not know yet.
func TestClean_LeavesARecreatedTopicAlone(t *testing.T) {
	t.Parallel()
	b := openInternal(t).t
	patterns, err := b.tierPatterns("orders", "billing")
	require.NoError(t, err)
	s := &subscription{
		b: b, q: driver.Queue{Topic: "orders", Group: "billing"}, tierPatterns: patterns, log: b.log,
		commits: committer{topics: b.topics, group: "billing"},
	}
	retries := b.tier("orders.billing_retry.1000", time.Second, 1)
	at := topicPartition{retries.name, 0}
	handle := func() {
		_, _, err := b.topics.ensure(t.Context(), retries)
		require.NoError(t, err)
		require.NoError(t, errors.Join(b.waits.send(t.Context(), []*kgo.Record{{Topic: retries.name}})...))
		found, err := b.topics.describe(t.Context(), []string{retries.name})
		require.NoError(t, err)
		handled := settledPoint(retries.name, 1)
		handled.id = found[retries.name].id
		require.NoError(t, s.commits.commit(t.Context(), noMember, func() []point { return []point{handled} }, false))
	}
	oldest := func() int64 {
		s.clean(t.Context())
		offset, err := b.topics.bound(t.Context(), at, offsetOldest)
		require.NoError(t, err)
		return offset
	}
	handle()
	require.EqualValues(t, 1, oldest())
	handle()
	_, err = b.topics.admin.DeleteTopics(t.Context(), retries.name)
	require.NoError(t, err)
	b.topics.forget(retries.name)
	_, _, err = b.topics.ensure(t.Context(), retries)
	require.NoError(t, err)
	require.NoError(t, errors.Join(b.waits.send(t.Context(), []*kgo.Record{{Topic: retries.name}})...))
	require.Zero(t, oldest(), "the waiting message is deleted")
}
