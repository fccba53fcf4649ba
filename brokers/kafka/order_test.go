package kafka_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// sequence checks that the messages of every key are handled in order, one attempt after the other.
type sequence struct {
	mu       sync.Mutex
	t        *testing.T
	next     map[string]int         // per key
	attempts map[string]map[int]int // per key and number
	done     int
	again    int // handled again after a success
	changed  chan struct{}
}

func newSequence(t *testing.T) *sequence {
	t.Helper()
	return &sequence{t: t, next: map[string]int{}, attempts: map[string]map[int]int{}, changed: make(chan struct{}, 1)}
}

// handle returns the attempt, and whether it is the first one for that message.
func (s *sequence) handle(m *message.Message) (attempt int) {
	key := m.Metadata[envelope.KeyKafkaKey]
	number, err := strconv.Atoi(string(m.Payload))
	if err != nil {
		s.t.Errorf("payload %q", m.Payload)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case number < s.next[key]:
		s.again++
	case number > s.next[key]:
		s.t.Errorf("key %s: message %d before %d", key, number, s.next[key])
	}
	if s.attempts[key] == nil {
		s.attempts[key] = map[int]int{}
	}
	s.attempts[key][number]++
	return s.attempts[key][number]
}

func (s *sequence) succeed(m *message.Message) {
	key := m.Metadata[envelope.KeyKafkaKey]
	number, _ := strconv.Atoi(string(m.Payload))
	s.mu.Lock()
	defer s.mu.Unlock()
	if number == s.next[key] {
		s.next[key]++
		s.done++
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// wait waits for n successes, and fails if there is no progress.
func (s *sequence) wait(n int) {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		done := s.done
		s.mu.Unlock()
		if done >= n {
			return
		}
		select {
		case <-s.changed:
			deadline = time.After(patience)
		case <-deadline:
			s.mu.Lock()
			defer s.mu.Unlock()
			require.FailNow(s.t, "not all messages were handled", "%d of %d; next %v", s.done, n, s.next)
		}
	}
}

// consumeInOrder fails every twentieth message twice, with delays in between. It calls onHandled for each message.
func consumeInOrder(t *testing.T, b *kafka.Broker, messages <-chan *message.Message, s *sequence, onHandled func()) {
	t.Helper()
	for m := range messages {
		go func() {
			defer onHandled()
			attempt := s.handle(m)
			number, _ := strconv.Atoi(string(m.Payload))
			if number%20 == 7 && attempt < 3 {
				origin, _ := envelope.OriginFrom(m.Context())
				if err := b.Reschedule(context.Background(), *origin, m.Copy(),
					time.Duration(attempt)*100*time.Millisecond); err != nil {
					t.Errorf("reschedule: %v", err)
					m.Nack()
					return
				}
				m.Ack()
				return
			}
			s.succeed(m)
			m.Ack()
		}()
	}
}

// The order per key is strict even though 5 % of the messages fail twice, and members join and leave the group.
func TestOrder_KeysKeepTheirOrderOverRetriesAndRebalances(t *testing.T) {
	t.Parallel()
	const keys, rebalances = 20, 3
	c := cluster(t, kfake.DefaultNumPartitions(4))
	first := open(t, c, "order=key", "concurrency=8", "session-timeout=20s")
	topic := name("orders")
	s := newSequence(t)
	messages := subscribe(t, first, topic)
	go consumeInOrder(t, first, messages, s, func() {})

	stop, published := make(chan struct{}), make(chan int)
	go publishInOrder(t, first, topic, keys, stop, published)
	for range rebalances {
		joinAndLeave(t, c, topic, s)
	}
	close(stop)
	n := <-published
	s.wait(n)
	require.Zero(t, s.again, "handled again after a success")
	t.Logf("%d messages", n)
}

// publishInOrder repeatedly publishes the next message of every key until stop, and returns how many it has published.
func publishInOrder(t *testing.T, b brokers.Broker, topic string, keys int, stop <-chan struct{},
	published chan<- int,
) {
	t.Helper()
	publisher := b.Publisher()
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for i := 0; ; i++ {
		var batch []*message.Message
		for k := range keys {
			m := newMessage(fmt.Sprintf("k%d-%d", k, i), strconv.Itoa(i))
			m.Metadata[envelope.KeyKafkaKey] = "customer-" + strconv.Itoa(k)
			batch = append(batch, m)
		}
		if err := publisher.Publish(topic, batch...); err != nil {
			t.Errorf("publish: %v", err)
		}
		select {
		case <-stop:
			published <- (i + 1) * keys
			return
		case <-pace.C:
		}
	}
}

// joinAndLeave runs a second member that leaves after it has handled a message.
func joinAndLeave(t *testing.T, c *kfake.Cluster, topic string, s *sequence) {
	t.Helper()
	b, err := brokers.Open(t.Context(), urlOf(c, "group=billing", "order=key", "concurrency=8", "session-timeout=20s"))
	require.NoError(t, err)
	handled, ended := make(chan struct{}, 1), make(chan struct{})
	messages := subscribe(t, b, topic)
	go func() {
		defer close(ended)
		consumeInOrder(t, b.(*kafka.Broker), messages, s, func() {
			select {
			case handled <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-handled:
	case <-time.After(patience):
		t.Error("the second member got no messages")
	}
	require.NoError(t, b.Close())
	<-ended
}

func keyed(id, key string) *message.Message {
	m := newMessage(id, id)
	m.Metadata[envelope.KeyKafkaKey] = key
	return m
}

// receiveID checks which message is delivered next, and returns it unacked.
func receiveID(t *testing.T, messages <-chan *message.Message, id string) *message.Message {
	t.Helper()
	m := receive(t, messages)
	require.Equal(t, id, m.UUID)
	return m
}

// A dead letter does not block the later messages of its key.
func TestOrder_ContinuesAfterADeadLetter(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t), "order=key", "concurrency=4")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("a3", "a")))
	m := receiveID(t, messages, "a1")
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "exhausted"}))
	m.Ack()
	receiveID(t, messages, "a2").Ack()
	receiveID(t, messages, "a3").Ack()
}

// An operator deletes waiting messages: their keys used to be held back until the next rebalance.
func TestOrder_KeysOfDeletedRetriesContinue(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "order=key", "concurrency=4", "commit-interval=20ms")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	for _, id := range []string{"a1", "b1"} { // while the first waits, the other is not in memory
		require.NoError(t, b.Publisher().Publish(topic, keyed(id, id[:1])))
		retryIn(t, b, receiveID(t, messages, id), 10*time.Second)
	}
	require.NoError(t, b.Publisher().Publish(topic, keyed("b2", "b")))
	consumeRaw(t, c, topic+".billing_retry.parked", 1)
	waiting := topic + ".billing_retry.10000"
	_, err := administer(t, c).DeleteRecords(t.Context(), kadm.Offsets{waiting: {0: {Topic: waiting, At: 2}}})
	require.NoError(t, err)
	for last := ""; last != "b2"; {
		m := receive(t, messages)
		last = m.UUID
		// On a slow machine the operator comes after both were read, and keys have no order among each other.
		require.Contains(t, []string{"a1", "b1", "b2"}, last)
		m.Ack()
	}
}

// The retry of a key went to another partition, where its owner handled it, if the retry topic had fewer partitions
// than the topic: the key was held back until the next rebalance.
func TestOrder_RetryTopicWithFewerPartitions(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	operator := open(t, c, "order=key", "partitions=2")
	plan := operator.Plan(topic)
	for i := range plan.Topics {
		if strings.HasSuffix(plan.Topics[i].Name, "_retry.100") {
			plan.Topics[i].Partitions = 1
		}
	}
	require.NoError(t, operator.Apply(t.Context(), plan))
	b := open(t, c, "order=key", "concurrency=4", "auto-create=false")
	messages := subscribe(t, b, topic)
	produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: 1, Key: sarama.StringEncoder("key")})
	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.ErrorContains(t, b.Reschedule(t.Context(), *origin, m.Copy(), 0), "add partitions")
	require.ErrorContains(t, b.Release(t.Context(), topic, "billing", []byte("key")), "add partitions")
	m.Nack() // as the pipeline does

	m = receive(t, messages)
	_, err := administer(t, c).UpdatePartitions(t.Context(), 2, topic+".billing_retry.100", topic+"_retry.100")
	require.NoError(t, err)
	produce(t, c, &sarama.ProducerMessage{ // it also looks periodically
		Topic: topic + "_retry.100", Headers: []sarama.RecordHeader{raw("x-kafka-control", []byte("tiers"))},
	})
	retryIn(t, b, m, 0)
	receive(t, messages).Ack()
}

// Retries of a group without order used to be refused too, if another group of the process had order=key.
func TestOrder_OfAnotherGroupDoesNotMatter(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	ordered := []brokers.SubscriberOption{brokers.WithGroup("mail"), brokers.WithParam("order", "key")}
	operator := open(t, c, "partitions=2")
	subscribe(t, operator, topic, ordered...)
	plan := operator.Plan(topic)
	for i := range plan.Topics {
		if strings.HasSuffix(plan.Topics[i].Name, "billing_retry.100") {
			plan.Topics[i].Partitions = 1
		}
	}
	require.NoError(t, operator.Apply(t.Context(), plan))
	require.NoError(t, operator.Close())
	b := open(t, c, "auto-create=false")
	messages := subscribe(t, b, topic)
	subscribe(t, b, topic, ordered...)
	produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: 1, Key: sarama.StringEncoder("key")})
	retryIn(t, b, receive(t, messages), 0)
	receive(t, messages).Ack()
}
