package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/redrive-go/redrive/brokers"
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
