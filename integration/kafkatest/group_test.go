package kafkatest

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

var errOnce = errors.New("fails the first time")

// member is a consumer of the group with a pipeline; it stops in leave, or at the end of the test.
type member struct {
	t      *testing.T
	router *message.Router
	broker brokers.Broker
	ended  <-chan error
}

func join(t *testing.T, url, topic string, backoff time.Duration, handle message.NoPublishHandlerFunc) *member {
	t.Helper()
	return joinWith(t, url, topic, middleware.Config{MaxAttempts: 4, Backoff: middleware.Constant(backoff)}, handle)
}

// joinWith adds the broker to cfg: for retries, and as the first sink of dead letters.
func joinWith(t *testing.T, url, topic string, cfg middleware.Config, handle message.NoPublishHandlerFunc) *member {
	t.Helper()
	b, err := brokers.OpenConfig(context.Background(), brokers.Config{URL: url, PublishTimeout: await.Patience})
	require.NoError(t, err)
	cfg.Rescheduler = b
	if cfg.DeadLetters == nil {
		cfg.DeadLetters = b
	} else {
		cfg.DeadLetters = middleware.Sinks{b, cfg.DeadLetters}
	}
	pipeline, err := middleware.New(cfg)
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("consumer", topic, b.Subscriber(), handle)
	m := &member{t: t, router: router, broker: b, ended: await.Run(context.Background(), t, router)}
	t.Cleanup(m.leave)
	return m
}

func (m *member) leave() {
	if err := errors.Join(m.router.Close(), <-m.ended, m.broker.Close()); err != nil {
		m.t.Error(err)
	}
}

// A second member joins and leaves ten times while messages wait for their retry: each message is retried once, on
// time, by one of the members.
func TestRebalance_DuringWaits(t *testing.T) {
	const n, rebalances, wait = 300, 10, 8 * time.Second
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 4)
	url := k.URL() + "?group=billing&concurrency=16&session-timeout=6s"

	var (
		mu     sync.Mutex
		failed = map[string]time.Time{}
		late   []time.Duration
	)
	l := newLedger()
	handle := func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		mu.Lock()
		defer mu.Unlock()
		if attempt.Number == 1 {
			if _, again := failed[string(m.Payload)]; again {
				t.Errorf("message %s had its first attempt twice", m.Payload)
			}
			failed[string(m.Payload)] = time.Now()
			l.handled("failed " + string(m.Payload))
			return errOnce
		}
		waited := time.Since(failed[string(m.Payload)])
		if waited < wait {
			t.Errorf("message %s was delivered after %s", m.Payload, waited)
		}
		late = append(late, waited-wait)
		l.handled(string(m.Payload))
		return nil
	}
	first := join(t, url, topic, wait, handle)
	require.NoError(t, first.broker.Publisher().Publish(topic, numbers(0, n)...))
	l.wait(t, n)
	for range rebalances {
		join(t, url, topic, wait, handle).leave()
	}
	l.wait(t, 2*n)
	require.Zero(t, l.settle(2*time.Second), "handled twice")
	var worst time.Duration
	for _, d := range late {
		worst = max(worst, d)
	}
	t.Logf("%d retries over %d joins and leaves: 0 lost, 0 twice, 0 early, at most %s late", n, rebalances, worst)
}

// With order=key, 5 % of 10,000 messages with 100 keys fail up to twice, while members join and leave. The messages of
// each key succeed in the order in which they were published.
func TestOrder_TenThousandMessagesUnderRebalances(t *testing.T) {
	const keys, perKey = 100, 100
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 4)
	url := k.URL() + "?group=billing&concurrency=32&order=key&session-timeout=6s"

	var (
		mu   sync.Mutex
		next = map[string]int{}
	)
	l := newLedger()
	handle := func(m *message.Message) error {
		key := m.Metadata[envelope.KeyKafkaKey]
		number, err := strconv.Atoi(string(m.Payload))
		if err != nil {
			return err
		}
		attempt, _ := middleware.AttemptFrom(m.Context())
		mu.Lock()
		defer mu.Unlock()
		if number != next[key] {
			t.Errorf("%s: message %d, attempt %d, while %d is due", key, number, attempt.Number, next[key])
		}
		if number%20 == 7 && attempt.Number <= 1+number/20%2 {
			return errOnce
		}
		next[key]++
		l.handled(key + "/" + string(m.Payload))
		return nil
	}
	first := join(t, url, topic, 500*time.Millisecond, handle)
	published := make(chan struct{})
	go func() {
		defer close(published)
		publisher := first.broker.Publisher()
		for i := range perKey {
			var batch []*message.Message
			for key := range keys {
				m := message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(i)))
				m.Metadata[envelope.KeyKafkaKey] = "key-" + strconv.Itoa(key)
				batch = append(batch, m)
			}
			if err := publisher.Publish(topic, batch...); err != nil {
				t.Errorf("publish: %v", err)
			}
			<-time.After(100 * time.Millisecond) // real time: a load spread over the rebalances
		}
	}()
	for range 4 {
		join(t, url, topic, 500*time.Millisecond, handle).leave()
	}
	<-published
	l.wait(t, keys*perKey)
	require.Zero(t, l.settle(time.Second), "handled twice")
}

// Of two groups on one topic one fails: the other gets every message once.
func TestGroups_OneFailingDoesNotTouchTheOther(t *testing.T) {
	const n = 500
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 3)
	failing, other := newLedger(), newLedger()
	a := join(t, k.URL()+"?group=mail&concurrency=8", topic, 200*time.Millisecond, func(m *message.Message) error {
		if a, _ := middleware.AttemptFrom(m.Context()); a.Number < 3 {
			return errOnce
		}
		failing.handled(string(m.Payload))
		return nil
	})
	join(t, k.URL()+"?group=billing&concurrency=8", topic, time.Second, func(m *message.Message) error {
		other.handled(string(m.Payload))
		return nil
	})
	require.NoError(t, a.broker.Publisher().Publish(topic, numbers(0, n)...))
	failing.wait(t, n)
	other.wait(t, n)
	require.Zero(t, failing.settle(time.Second))
	require.Zero(t, other.settle(time.Second))
}
