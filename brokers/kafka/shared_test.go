package kafka_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Topics and groups with dots may share waiting topics: group eu of topic orders retries in orders.eu_retry.N, which is
// also where messages of topic orders.eu wait for their first delivery. One consumer used to handle and delete what
// waited for the other, which never got it.
func TestShared_WaitingTopicsOfDottedNames(t *testing.T) {
	t.Parallel()
	const delay = 500 * time.Millisecond
	for title, tt := range map[string]struct {
		group  string // on topic orders; the messages are for group mail on topic orders.eu
		params []string
		first  time.Duration // before the first delivery
		want   []string
	}{
		"first deliveries": {group: "eu", first: delay, want: []string{"a1"}},
		"retries":          {group: "eu.mail", want: []string{"a1"}},
		"parked messages":  {group: "eu.mail", params: []string{"order=key"}, want: []string{"a1", "a2"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			orders := name("orders")
			_, err := administer(t, c).CreateTopic(t.Context(), 1, 1, nil, orders+".eu")
			require.NoError(t, err)
			b := open(t, c, tt.params...)
			m := keyed("a1", "a")
			envelope.SetDelay(m, tt.first)
			require.NoError(t, b.Publisher().Publish(orders+".eu", m))
			if tt.first == 0 {
				messages := subscribe(t, b, orders+".eu", brokers.WithGroup("mail"))
				retryIn(t, b, receiveID(t, messages, "a1"), delay)
			}
			if len(tt.want) > 1 {
				require.NoError(t, b.Publisher().Publish(orders+".eu", keyed("a2", "a")))
				consumeRaw(t, c, orders+".eu.mail_retry.parked", 1)
			}
			require.NoError(t, b.Close())

			b = open(t, c, tt.params...)
			messages := subscribe(t, b, orders, brokers.WithGroup(tt.group))
			require.NoError(t, b.Publisher().Publish(orders, keyed("b", "a")))
			retryIn(t, b, receiveID(t, messages, "b"), delay)
			receiveID(t, messages, "b").Ack()
			nothingMore(t, messages)
			require.NoError(t, b.Close()) // which deletes its finished records

			b = open(t, c, tt.params...)
			messages = subscribe(t, b, orders+".eu", brokers.WithGroup("mail"))
			for _, id := range tt.want {
				receiveID(t, messages, id).Ack()
			}
			nothingMore(t, messages)
		})
	}
}

// Kafka stores one position per group and topic: two topics of one group that share their waiting topics used to skip
// each other's messages.
func TestShared_TwoTopicsOfAGroupAreRefused(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t))
	topic := name("orders")
	subscribe(t, b, topic)
	subscribe(t, b, topic) // another member
	_, err := b.Subscriber().Subscribe(t.Context(), topic+".billing")
	require.ErrorContains(t, err, "delayed={topic}_delayed.{delay}")
	subscribe(t, b, topic+".billing", brokers.WithGroup("mail"))
	b = open(t, cluster(t), "delayed={topic}_delayed.{delay}")
	subscribe(t, b, topic)
	subscribe(t, b, topic+".billing")
}

// Two Subscribe calls at once used to pass the check together.
func TestShared_TwoTopicsOfAGroupAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for range 30 {
		b := open(t, c)
		topic := name("orders")
		var running sync.WaitGroup
		var faults [2]error
		for i, topic := range []string{topic, topic + ".billing"} {
			running.Go(func() { _, faults[i] = b.Subscriber().Subscribe(context.Background(), topic) })
		}
		running.Wait()
		require.NotEqual(t, faults[0] == nil, faults[1] == nil, "one of them joins")
		require.NoError(t, b.Close())
	}
}

// Two processes of a group cannot each subscribe to one of two such topics, in either order: what waits for one of them
// while its process is down would be skipped by the other.
func TestShared_TwoTopicsOfAGroupInTwoProcesses(t *testing.T) {
	t.Parallel()
	for _, topics := range [][2]string{{"", ".billing"}, {".billing", ""}} {
		c, topic := cluster(t), name("orders")
		first, second := topic+topics[0], topic+topics[1]
		b := open(t, c)
		messages := subscribe(t, b, first)
		require.NoError(t, b.Publisher().Publish(first, newMessage("1", "")))
		receiveID(t, messages, "1").Ack()
		require.NoError(t, b.Close())

		_, err := open(t, c).Subscriber().Subscribe(t.Context(), second)
		require.ErrorContains(t, err, "If the group no longer reads "+first)
		subscribe(t, open(t, c), first)
		subscribe(t, open(t, c), second, brokers.WithGroup("mail"))
	}
}
