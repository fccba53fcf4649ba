package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// A group that starts at the newest record receives the messages published after Joined, and no earlier ones.
func TestJoined_IsWhereNewestBegins(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t), "offset=newest", "partitions=3")
	topic := name("orders")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("before", "")))
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	for _, id := range []string{"1", "2", "3", "4", "5", "6"} {
		require.NoError(t, b.Publisher().Publish(topic, keyed(id, id)))
	}
	got := map[string]bool{}
	for range 6 {
		m := receive(t, messages)
		m.Ack()
		got[m.UUID] = true
	}
	require.Len(t, got, 6)
	require.NotContains(t, got, "before")
}

// A member without a partition has also joined; one that cannot join reports that when its caller's context ends.
func TestJoined_WithoutPartitionsAndInTime(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	refusal := failJoins(c)
	first, second := open(t, c), open(t, c)
	topic := name("orders")
	subscribe(t, first, topic)
	require.NoError(t, first.Joined(t.Context()))
	subscribe(t, second, topic)
	require.NoError(t, second.Joined(t.Context()))

	refusal.Store(kerr.GroupAuthorizationFailed) // so that it cannot join before the check
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	subscribe(t, second, name("others"))
	require.ErrorIs(t, second.Joined(ctx), context.DeadlineExceeded)
	require.NoError(t, second.Close())
	require.ErrorIs(t, second.Joined(t.Context()), brokers.ErrClosed)
}

// A group that starts at the newest record used to receive the delayed messages from before it. Its own retries, and
// messages delayed while it had no members, have to reach it.
func TestJoined_NewestAppliesToDelayedMessages(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "offset=newest", "commit-interval=20ms")
	publish := func(id string, delay time.Duration) {
		m := newMessage(id, "")
		envelope.SetDelay(m, delay)
		require.NoError(t, b.Publisher().Publish(topic, m))
	}
	publish("other", 0)
	publish("before", 500*time.Millisecond)
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	publish("after", 500*time.Millisecond)
	retryIn(t, b, receiveID(t, messages, "after"), 500*time.Millisecond)
	require.NoError(t, b.Close())

	b = open(t, c, "offset=newest", "commit-interval=20ms")
	publish("away", time.Second) // a topic without a position
	messages = subscribe(t, b, topic)
	got := []string{}
	for range 2 {
		m := receive(t, messages)
		got = append(got, m.UUID)
		m.Ack()
	}
	require.ElementsMatch(t, []string{"after", "away"}, got)
	nothingMore(t, messages)
}

// A group that began at the oldest record is not a new one, although it has not handled anything. Records that came
// while its members were deployed again, with offset=newest, used to be skipped.
func TestJoined_NewestAppliesToNewGroupsOnly(t *testing.T) {
	t.Parallel()
	c, topic := cluster(t), name("orders")
	b := open(t, c)
	subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Close())
	b = open(t, c, "offset=newest")
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, subscribe(t, b, topic), "1").Ack()
}

// Kafka has forgotten the positions of a group.
func TestJoined_NewestKeepsRetries(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "offset=newest")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	retryIn(t, b, receiveID(t, messages, "1"), 2*time.Second)
	require.NoError(t, b.Close())
	_, err := administer(t, c).DeleteGroup(t.Context(), "billing")
	require.NoError(t, err)
	receiveID(t, subscribe(t, open(t, c, "offset=newest"), topic), "1").Ack()
}
