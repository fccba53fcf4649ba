package kafkatest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Records of a foreign producer's transactions: those of aborted ones reach no handler, and the gaps that they and the
// control records leave in the positions stop neither retries nor the order of keys, while members come and go.
func TestForeign_Transactions(t *testing.T) {
	const transactions, size = 60, 10
	k := services.SharedKafka(t)
	for _, order := range []string{"none", "key"} {
		t.Run("order="+order, func(t *testing.T) {
			topic := k.CreateTopic(t, 2)
			url := k.URL() + "?group=billing&concurrency=8&session-timeout=6s&commit-interval=50ms&order=" + order
			l := newLedger()
			var mu sync.Mutex
			last := map[string]int{}
			handle := func(m *message.Message) error {
				var key string
				var n int
				_, err := fmt.Sscanf(string(m.Payload), "committed %s %d", &key, &n)
				if err != nil {
					t.Errorf("%q was handled", m.Payload)
				}
				if a, _ := middleware.AttemptFrom(m.Context()); n%10 == 3 && a.Number < 3 {
					return errOnce
				}
				mu.Lock()
				if order == "key" && n <= last[key] {
					t.Errorf("%s %d after %d", key, n, last[key])
				}
				last[key] = n
				mu.Unlock()
				l.handled(string(m.Payload))
				return nil
			}
			join(t, url, topic, 200*time.Millisecond, handle)
			client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...), kgo.TransactionalID(topic),
				kgo.DefaultProduceTopic(topic))
			require.NoError(t, err)
			defer client.Close()
			n := 0
			for i := range transactions {
				require.NoError(t, client.BeginTransaction())
				end, state := kgo.TryCommit, "committed"
				if i%3 == 1 {
					end, state = kgo.TryAbort, "aborted"
				}
				for j := range size {
					key := "k" + strconv.Itoa(j%5)
					value := fmt.Appendf(nil, "%s %s %d", state, key, i*size+j+1)
					client.Produce(t.Context(), &kgo.Record{Key: []byte(key), Value: value}, nil)
				}
				require.NoError(t, client.Flush(t.Context()))
				require.NoError(t, client.EndTransaction(t.Context(), end))
				if state == "committed" {
					n += size
				}
				if i%20 == 19 {
					join(t, url, topic, 200*time.Millisecond, handle).leave()
				}
			}
			l.wait(t, n)
			require.Zero(t, l.settle(time.Second), "handled twice")
		})
	}
}

// A member that is frozen for longer than its session loses its partitions. Nothing is lost when it wakes up, and only
// what it had in hand is handled twice.
func TestForeign_FrozenMember(t *testing.T) {
	const n = 3000
	k := services.SharedKafka(t)
	for _, order := range []string{"none", "key"} {
		t.Run("order="+order, func(t *testing.T) {
			topic := k.CreateTopic(t, 3)
			url := k.URL() + "?group=billing&concurrency=8&session-timeout=3s&commit-interval=50ms&order=" + order
			l := newLedger()
			frozen := startConsumer(t, url, topic, 5*time.Millisecond, l.handled)
			b := open(t, url)
			require.NoError(t, b.Publisher().Publish(topic, numbers(0, n/3)...))
			l.wait(t, n/9)
			require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGSTOP))
			startConsumer(t, url, topic, 5*time.Millisecond, l.handled)
			require.NoError(t, b.Publisher().Publish(topic, numbers(n/3, 2*n/3)...))
			l.wait(t, 2*n/3-50)
			require.NoError(t, frozen.cmd.Process.Signal(syscall.SIGCONT))
			require.NoError(t, b.Publisher().Publish(topic, numbers(2*n/3, n)...))
			l.wait(t, n)
			t.Logf("0 of %d lost, %d handled twice", n, l.settle(3*time.Second))
		})
	}
}

// A sarama consumer with eager rebalancing comes to the group and leaves it: each message is handled once.
func TestForeign_EagerMemberInTheGroup(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 4)
	url := k.URL() + "?group=" + topic + "&concurrency=8&session-timeout=6s&assignor=range"
	l := newLedger()
	m := join(t, url, topic, 200*time.Millisecond, func(m *message.Message) error {
		n, _ := strconv.Atoi(string(m.Payload))
		if a, _ := middleware.AttemptFrom(m.Context()); n%10 == 3 && a.Number < 2 {
			return errOnce
		}
		l.handled(string(m.Payload))
		return nil
	})
	n := 0
	for range 4 {
		publish := func() {
			require.NoError(t, m.broker.Publisher().Publish(topic, numbers(n, n+400)...))
			n += 400
		}
		publish()
		other := &eager{l: l, joined: make(chan struct{}, 16)}
		cfg := sarama.NewConfig()
		cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
		cfg.Consumer.Offsets.AutoCommit.Interval = 50 * time.Millisecond
		group, err := sarama.NewConsumerGroup(k.Brokers, topic, cfg)
		require.NoError(t, err)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			for ctx.Err() == nil {
				_ = group.Consume(ctx, []string{topic}, other)
			}
		}()
		<-other.joined
		publish()
		l.wait(t, n-50)
		leave()
		<-left
		require.NoError(t, group.Close())
	}
	l.wait(t, n)
	t.Logf("0 of %d lost, %d handled twice", n, l.settle(2*time.Second))
}

type eager struct {
	l      *ledger
	joined chan struct{}
}

func (e *eager) Setup(sarama.ConsumerGroupSession) error   { e.joined <- struct{}{}; return nil }
func (e *eager) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (e *eager) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for m := range c.Messages() {
		e.l.handled(string(m.Value))
		s.MarkMessage(m, "host@sarama")
	}
	return nil
}

// While the group rebalances, Kafka describes its members without their topics.
func TestReaders_WhileTheGroupRebalances(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 1)
	url := k.URL() + "?group=" + topic + "&session-timeout=20s"
	started, release := make(chan struct{}), make(chan struct{})
	m := join(t, url, topic, time.Second, func(m *message.Message) error {
		close(started)
		<-release
		return nil
	})
	defer close(release)
	require.NoError(t, m.broker.Publisher().Publish(topic, numbers(0, 1)...))
	<-started
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers...))
	require.NoError(t, err)
	defer client.Close()
	join(t, url, topic, time.Second, func(m *message.Message) error { return nil })
	state := ""
	await.True(t, func() bool {
		groups, err := kadm.NewClient(client).DescribeGroups(t.Context(), topic)
		if err == nil {
			state = groups[topic].State
			t.Log(state, len(groups[topic].Members))
		}
		return state != "Stable"
	})
	counter := m.broker.(interface {
		Readers(context.Context, envelope.Origin) (int, error)
	})
	readers, err := counter.Readers(t.Context(), envelope.Origin{Topic: topic, Consumer: topic})
	require.NoError(t, err)
	require.NotZero(t, readers, state)
}
