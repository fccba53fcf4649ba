package kafka_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

func retryIn(t *testing.T, b *kafka.Broker, m *message.Message, delay time.Duration) {
	t.Helper()
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.Reschedule(t.Context(), *origin, m.Copy(), delay))
	m.Ack()
}

// deadLetter dead-letters a message.
func deadLetter(t *testing.T, b *kafka.Broker, m *message.Message) {
	t.Helper()
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "permanent"}))
	m.Ack()
}

// retriedUntil passes on all messages except one, which it reschedules on every delivery until released is closed, so
// that later messages find it waiting, however long they take.
func retriedUntil(t *testing.T, b *kafka.Broker, messages <-chan *message.Message, payload string, delay time.Duration,
	released <-chan struct{},
) <-chan *message.Message {
	t.Helper()
	passed := make(chan *message.Message)
	go func() {
		defer close(passed)
		for count := 1; ; {
			m, ok := <-messages
			if !ok {
				return
			}
			select {
			case <-released:
			default:
				if string(m.Payload) != payload {
					break
				}
				origin, _ := envelope.OriginFrom(m.Context())
				next := m.Copy()
				next.Metadata[envelope.KeyRetryCount] = strconv.Itoa(count)
				if err := b.Reschedule(t.Context(), *origin, next, delay); err != nil {
					t.Error(err)
				}
				count++
				m.Ack()
				continue
			}
			select {
			case passed <- m:
			case <-t.Context().Done():
				return
			}
		}
	}()
	return passed
}

// nothingMore checks that no further messages arrive.
func nothingMore(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	select {
	case m := <-messages:
		require.FailNow(t, "delivered again", m.UUID)
	case <-time.After(300 * time.Millisecond): // there is no event to wait for
	}
}

// A commit that the coordinator refuses for a while, including the last one, is retried until it succeeds.
func TestCommit_RefusedForAWhileIsMadeLater(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	refusal := failCommits(c)
	b := open(t, c, "commit-interval=20ms")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", ""), newMessage("2", "")))
	receiveID(t, messages, "1").Ack()
	refusal.Store(kerr.CoordinatorLoadInProgress)
	receiveID(t, messages, "2").Ack()
	closed := make(chan error)
	go func() { closed <- b.Close() }()
	select {
	case err := <-closed:
		require.FailNow(t, "closed without its last commit", err)
	case <-time.After(300 * time.Millisecond): // refusals, whose number is unknown here
	}
	refusal.Store(nil)
	require.NoError(t, <-closed)

	b = open(t, c)
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("3", "")))
	receiveID(t, messages, "3").Ack()
}

// A new owner knows which messages block which keys before it handles any message, even after a restart, or a crash
// before any commit, when every message is redelivered.
func TestOrder_IsKeptByTheNextOwner(t *testing.T) {
	t.Parallel()
	for title, crash := range map[string]bool{"after a restart": false, "after a crash": true} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			refusal := failCommits(c)
			params := []string{"order=key", "concurrency=4", "commit-interval=20ms"}
			b := open(t, c, params...)
			topic := name("orders")
			messages := subscribe(t, b, topic)
			if crash {
				refusal.Store(kerr.UnknownMemberID)
			}
			messages = retriedUntil(t, b, messages, "a1", 5*time.Second, nil)
			require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a")))
			require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a"), keyed("a3", "a"), keyed("b1", "b")))
			receiveID(t, messages, "b1").Ack()
			parked := consumeRaw(t, c, parkingTopic(t, b, topic), 2)
			require.NoError(t, b.Close())
			refusal.Store(nil)

			// It is parked twice, the second time by a member that did not know yet that it had lost the partition.
			again := &sarama.ProducerMessage{
				Topic: parked[0].Topic, Key: sarama.ByteEncoder(parked[0].Key), Value: sarama.ByteEncoder(parked[0].Value),
			}
			for _, h := range parked[0].Headers {
				again.Headers = append(again.Headers, *h)
			}
			produce(t, c, again)

			b = open(t, c, params...)
			messages = subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, keyed("a4", "a"), keyed("b2", "b")))
			want := map[string][]string{"a": {"a1", "a2", "a3", "a4"}, "b": {"b2"}}
			if crash {
				want["b"] = []string{"b1", "b2"}
			}
			got := map[string][]string{} // the retry may be due by now, and arrive before messages that do not wait for it
			for !slices.Contains(got["a"], "a4") || !slices.Contains(got["b"], "b2") {
				m := receive(t, messages)
				got[m.UUID[:1]] = append(got[m.UUID[:1]], m.UUID)
				m.Ack()
			}
			if crash { // each of its retries is redelivered
				got["a"] = slices.Compact(got["a"])
			}
			require.Equal(t, want, got)
			nothingMore(t, messages)
		})
	}
}

func parkingTopic(t *testing.T, b *kafka.Broker, topic string) string {
	t.Helper()
	for _, planned := range b.Plan(topic).Topics {
		if strings.HasSuffix(planned.Name, ".parked") {
			return planned.Name
		}
	}
	require.FailNow(t, "no parking topic")
	return ""
}

// When a service gave up order=key, or an update to it was rolled back, what had been parked behind a retry waited
// forever.
func TestOrder_ParkedMessagesAfterOrderWasGivenUp(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "order=key", "concurrency=4", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a")))
	retryIn(t, b, receiveID(t, messages, "a1"), time.Minute)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a"), keyed("b1", "b")))
	receiveID(t, messages, "b1").Ack()
	waitForDepths(t, b, topic, map[string]int64{"billing retry": 1, "billing parked": 1})
	require.NoError(t, b.Close())

	b = open(t, c, "commit-interval=20ms")
	messages = subscribe(t, b, topic)
	receiveID(t, messages, "a2").Ack()
	waitForDepths(t, b, topic, map[string]int64{"billing retry": 1})
	require.NoError(t, b.Close())
	oldest, err := administer(t, c).ListStartOffsets(t.Context(), topic+".billing_retry.parked")
	require.NoError(t, err)
	require.EqualValues(t, 1, oldest[topic+".billing_retry.parked"][0].Offset, "they are removed")
}

// A parked message that is in flight when its process ends is redelivered before those behind it.
func TestOrder_ParkedMessageInHandIsRedelivered(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	params := []string{"order=key", "concurrency=4", "commit-interval=20ms", "drain=200ms"}
	b := open(t, c, params...)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a")))
	retryIn(t, b, receiveID(t, messages, "a1"), 10*time.Second)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a"), keyed("a3", "a")))
	consumeRaw(t, c, parkingTopic(t, b, topic), 2)
	receiveID(t, messages, "a1").Ack()
	receiveID(t, messages, "a2") // not acked
	require.NoError(t, b.Close())

	messages = subscribe(t, open(t, c, params...), topic)
	receiveID(t, messages, "a2").Ack()
	receiveID(t, messages, "a3").Ack()
	nothingMore(t, messages)
}

// A naming scheme may let groups share their retry topics. Each group handles only its own records.
func TestGroups_ShareARetryTopic(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "retry={topic}_again_{delay}", "commit-interval=20ms")
	topic := name("orders")
	billing, mail := subscribe(t, b, topic), subscribe(t, b, topic, brokers.WithGroup("mail"))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("1", "")))
	receiveID(t, mail, "1").Ack()
	retryIn(t, b, receiveID(t, billing, "1"), 0)
	receiveID(t, billing, "1").Ack()
	nothingMore(t, mail)
}

// If a process ends between a retry and its ack, the message is redelivered and fails again, but its second retry is
// recognised as the first and handled once. It used to start a second chain of retries. A redrive of the message starts
// over, and its retry is a separate one.
func TestReplay_OfARetryThatWasPublishedStartsNoSecondChain(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	params := []string{"commit-interval=20ms", "drain=50ms"}
	topic := name("orders")
	fail := func(b *kafka.Broker, m *message.Message) {
		origin, _ := envelope.OriginFrom(m.Context())
		next := m.Copy()
		next.Metadata[envelope.KeyRetryCount] = "1"
		require.NoError(t, b.Reschedule(context.WithoutCancel(m.Context()), *origin, next, 0))
	}
	ended := open(t, c, params...)
	messages := subscribe(t, ended, topic)
	require.NoError(t, ended.Publisher().Publish(topic, keyed("a1", "a")))
	fail(ended, receive(t, messages)) // and no ack
	require.NoError(t, ended.Close())

	b := open(t, c, params...)
	messages = subscribe(t, b, topic)
	runs := map[string]int{}
	var origin *envelope.Origin
	for range 2 {
		m := receive(t, messages)
		count := m.Metadata[envelope.KeyRetryCount]
		if runs[count]++; count == "" {
			fail(b, m)
		}
		origin, _ = envelope.OriginFrom(m.Context())
		m.Ack()
	}
	require.Equal(t, map[string]int{"": 1, "1": 1}, runs)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a")))
	receiveID(t, messages, "a2").Ack()
	require.NoError(t, b.Reschedule(t.Context(), *origin, keyed("a1", "a"), 0))
	redriven := receiveID(t, messages, "a1") // after the second retry
	require.EqualValues(t, 1, b.Replays())
	fail(b, redriven)
	redriven.Ack()
	receiveID(t, messages, "a1").Ack()
	require.EqualValues(t, 1, b.Replays())
}

// If the first unsettled retry had expired or was deleted before a restart, the retries settled behind it used to run
// again.
func TestRetry_SettledBehindADeletedOneIsNotRepeated(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	b := open(t, c, "commit-interval=20ms", "concurrency=8", "drain=50ms")
	messages := subscribe(t, b, topic)
	var first []*message.Message
	for _, id := range []string{"1", "2", "3"} {
		require.NoError(t, b.Publisher().Publish(topic, newMessage(id, "")))
		first = append(first, receiveID(t, messages, id))
	}
	for _, m := range first {
		retryIn(t, b, m, 0)
	}
	for range 3 {
		if m := receive(t, messages); m.UUID != "1" {
			m.Ack()
		}
	}
	require.NoError(t, b.Close())
	waiting := topic + ".billing_retry.100"
	_, err := administer(t, c).DeleteRecords(t.Context(), kadm.Offsets{waiting: {0: {Topic: waiting, At: 1}}})
	require.NoError(t, err)

	b = open(t, c)
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, newMessage("4", "")))
	m := receiveID(t, messages, "4")
	retryIn(t, b, m, 0)
	receiveID(t, messages, "4").Ack()
	nothingMore(t, messages)
}
