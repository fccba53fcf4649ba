package memory_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
)

func newBroker(t *testing.T, cfg brokers.Config) *memory.Broker {
	t.Helper()
	b, err := memory.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestNew_ReportsFaults(t *testing.T) {
	_, err := memory.New(brokers.Config{Concurrency: -1, Params: brokers.Params{"nack-pause": "0s", "max-message": "big"}})
	for _, want := range []string{"concurrency -1", `nack-pause="0s": must be at least 1ms`, `max-message="big"`} {
		require.ErrorContains(t, err, want)
	}
}

func TestSubscribe_ReturnsFaultsOfTheOptions(t *testing.T) {
	b := newBroker(t, brokers.Config{})
	_, err := b.Subscriber(brokers.WithConcurrency(0)).Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, "concurrency 0")
	require.ErrorContains(t, b.Subscriber(brokers.WithParam("nope",
		"1")).(message.SubscribeInitializer).SubscribeInitialize("orders"), "nope")
}

func TestPublish_KeepsMessagesForTheFirstGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, brokers.Config{})
		delayed := message.NewMessage("delayed", nil)
		envelope.SetDelay(delayed, time.Minute)
		require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("now", nil), delayed))
		require.Equal(t, memory.Depth{Ready: 1, Waiting: 1}, b.Depth("orders", "mail"))

		start := time.Now()
		in, err := b.Subscriber(brokers.WithGroup("mail")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		for _, want := range []string{"now", "delayed"} {
			m := <-in
			require.Equal(t, want, m.UUID)
			m.Ack()
		}
		require.Equal(t, time.Minute, time.Since(start))
		synctest.Wait()
		require.Equal(t, memory.Depth{}, b.Depth("orders", "mail"))
		require.Equal(t, memory.Depth{}, b.Depth("orders", "billing"), "the stored messages went to the first group")
	})
}

func TestPublish_AllOrNothingWhenOneIsTooLarge(t *testing.T) {
	b := newBroker(t, brokers.Config{URL: "mem://?max-message=1KiB"})
	large := message.NewMessage("large", make([]byte, 1020))
	large.Metadata.Set("key", "val")
	require.Equal(t, int64(1024), b.Capabilities().MaxMessageBytes)

	err := b.Publisher().Publish("orders", message.NewMessage("small", nil), large)
	require.ErrorIs(t, err, brokers.ErrTooLarge)
	require.EqualError(t, err, "memory: publish to orders: 1026 bytes, at most 1024: message is larger than the broker "+
		"takes")
	require.Zero(t, b.Depth("orders", "").Ready)

	require.ErrorIs(t, b.Reschedule(t.Context(), envelope.Origin{Topic: "orders"}, large, 0), brokers.ErrTooLarge)
	require.ErrorIs(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: large, Origin: envelope.Origin{Topic: "orders"}}), brokers.ErrTooLarge)
}

func TestReschedule_NeedsATopic(t *testing.T) {
	b := newBroker(t, brokers.Config{})
	err := b.Reschedule(t.Context(), envelope.Origin{Consumer: "billing"}, message.NewMessage("1", nil), 0)
	require.ErrorContains(t, err, "the origin names no topic")
	err = b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: message.NewMessage("1", nil)})
	require.ErrorContains(t, err, "the origin names no topic")
}

func TestReschedule_AcceptsTheLongestDelay(t *testing.T) {
	b := newBroker(t, brokers.Config{})
	require.NoError(t, b.Reschedule(t.Context(), envelope.Origin{Topic: "orders"}, message.NewMessage("1", nil),
		math.MaxInt64))
	require.Equal(t, 1, b.Depth("orders", "").Waiting)
	require.Greater(t, b.Waiting("orders", "")[0].Due.Year(), 2300)
}

func TestConnect_AfterAllWereClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newBroker(t, brokers.Config{})
		start := time.Now()
		require.NoError(t, first.Reschedule(t.Context(), envelope.Origin{Topic: "orders"}, message.NewMessage("waits", nil),
			time.Minute))
		require.NoError(t, first.Close())
		time.Sleep(time.Second)
		synctest.Wait()

		second, err := first.Connect(nil)
		require.NoError(t, err)
		in, err := second.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		m := <-in
		require.Equal(t, "waits", m.UUID)
		require.Equal(t, time.Minute, time.Since(start))
		m.Ack()
		require.NoError(t, second.Close())
	})
}

func TestNack_PauseDoublesAndOthersAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, brokers.Config{URL: "mem://?nack-pause=1s"})
		in, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("bad", nil), message.NewMessage("good", nil)))

		start := time.Now()
		var nacked []time.Duration
		for len(nacked) < 9 {
			m := <-in
			if m.UUID == "good" {
				require.Zero(t, time.Since(start), "it does not wait for the bad one")
				m.Ack()
				continue
			}
			origin, ok := envelope.OriginFrom(m.Context())
			require.True(t, ok)
			require.Equal(t, len(nacked), origin.DeliveryCount)
			require.Equal(t, len(nacked) > 0, origin.Redelivered)
			require.Equal(t, "1", origin.Position, "the position is stable across redeliveries")
			nacked = append(nacked, time.Since(start))
			m.Nack()
		}
		const s = time.Second
		require.Equal(t, []time.Duration{0, 1 * s, 3 * s, 7 * s, 15 * s, 31 * s, 63 * s, 127 * s, 191 * s}, nacked)
	})
}

func TestSubscribe_PatternsOfOneConsumerShareAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, brokers.Config{URL: "mem://?naming=service-bus&project=easyweek&group=audit"})
		require.True(t, b.Capabilities().Patterns)
		publish := b.Publisher().Publish
		require.NoError(t, publish("user.created", message.NewMessage("kept", nil)))

		in, err := b.Subscriber(brokers.WithPatterns("user.#", "*.created")).Subscribe(t.Context(), "invoice.*")
		require.NoError(t, err)
		for _, event := range []string{"invoice.paid", "order.paid", "invoice.created"} {
			require.NoError(t, publish(event, message.NewMessage(event, nil)))
		}
		for _, want := range []string{"kept", "invoice.paid", "invoice.created"} {
			m := <-in
			require.Equal(t, want, m.UUID, "delivered once, although two patterns match")
			origin, _ := envelope.OriginFrom(m.Context())
			require.Equal(t, "invoice.*", origin.Topic)
			if want == "invoice.paid" { // a retry keeps its routing key
				require.Equal(t, "invoice.paid", origin.RoutingKey)
				require.NoError(t, b.Reschedule(t.Context(), *origin, m.Copy(), time.Second))
			}
			m.Ack()
		}
		again := <-in
		origin, _ := envelope.OriginFrom(again.Context())
		require.Equal(t, "invoice.paid", origin.RoutingKey)
		again.Ack()
		require.Equal(t, 1, b.Depth("order.paid", "audit").Ready, "stored for a later subscriber")
	})
}

// A pattern matches events. The names of dead letter queues are none, as on a broker, where they are no routing keys.
func TestSubscribe_PatternsMatchNoDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, brokers.Config{URL: "mem://?naming=service-bus&project=easyweek&group=audit"})
		publish := b.Publisher().Publish
		die := func(id string) {
			require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
				Message: message.NewMessage(id, nil), Origin: envelope.Origin{Topic: "#", Consumer: "audit"},
			}))
		}
		die("before")
		in, err := b.Subscriber().Subscribe(t.Context(), "#")
		require.NoError(t, err)
		die("after")
		require.NoError(t, publish("user.created", message.NewMessage("event", nil)))
		m := <-in
		require.Equal(t, "event", m.UUID)
		m.Ack()
		letters, err := b.Subscriber(brokers.WithGroup("collector")).Subscribe(t.Context(), "easyweek.audit.failed")
		require.NoError(t, err)
		for _, want := range []string{"before", "after"} {
			m := <-letters
			require.Equal(t, want, m.UUID)
			m.Ack()
		}
	})
}

func TestSubscriber_ValuesOfTheContextReachTheHandlers(t *testing.T) {
	type key struct{}
	b := newBroker(t, brokers.Config{})
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	in, err := b.Subscriber().Subscribe(contextWith(t, key{}, "tenant"), "orders")
	require.NoError(t, err)
	m := <-in
	require.Equal(t, "tenant", m.Context().Value(key{}))
	m.Ack()
	<-m.Context().Done()
}

// According to performance.md, one million waiting retries need at most 1 KiB each.
func TestWaiting_CostsLessThanAKibibyte(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	b := newBroker(t, brokers.Config{})
	origin := envelope.Origin{Topic: "orders", Consumer: "billing"}
	const n = 20_000
	before := heap()
	for i := range n {
		id := strconv.Itoa(i)
		m := message.NewMessage(id, []byte(`{"order": `+id+`}`))
		for h := range 10 {
			m.Metadata.Set("header-"+strconv.Itoa(h), "value of some length "+id)
		}
		require.NoError(t, b.Reschedule(t.Context(), origin, m, time.Hour+time.Duration(i)))
	}
	each := (int64(heap()) - int64(before)) / n
	t.Logf("%d bytes each, with ten headers and a small payload", each)
	require.Less(t, each, int64(1024+10*48), "1 KiB plus the texts of the headers")
	require.Equal(t, n, b.Depth("orders", "billing").Waiting)
}

func TestTopics_AreIndependent(t *testing.T) {
	b := newBroker(t, brokers.Config{})
	for i := range 100 {
		require.NoError(t, b.Publisher().Publish(fmt.Sprintf("topic-%d", i), message.NewMessage(strconv.Itoa(i), nil)))
	}
	for i := range 100 {
		found := b.Peek(fmt.Sprintf("topic-%d", i), "")
		require.Len(t, found, 1)
		require.Equal(t, strconv.Itoa(i), found[0].UUID)
	}
}

func contextWith(t *testing.T, key, value any) context.Context {
	t.Helper()
	return context.WithValue(t.Context(), key, value)
}

// Package dlq redrives in batches with it.
func TestRescheduleAll_ReachesEachConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		origins := []envelope.Origin{{Topic: "orders", Consumer: "billing"}, {}, {Topic: "orders", Consumer: "mail"}}
		list := []*message.Message{message.NewMessage("1", nil), message.NewMessage("2", nil), message.NewMessage("3", nil)}
		faults := b.RescheduleAll(t.Context(), origins, list)
		require.NoError(t, faults[0])
		require.ErrorContains(t, faults[1], "names no topic")
		require.NoError(t, faults[2])
		for group, id := range map[string]string{"billing": "1", "mail": "3"} {
			messages, err := b.Subscriber(brokers.WithGroup(group)).Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			m := <-messages
			require.Equal(t, id, m.UUID)
			m.Ack()
		}
		require.Error(t, b.RescheduleAll(t.Context(), origins[:1], list)[0])
	})
}

// Parameters for another driver in a configuration do not prevent a program from running on mem://; a
// misspelled parameter of mem:// is refused, and so is an unknown parameter in the URL.
func TestNew_ParamsOfOtherDrivers(t *testing.T) {
	b, err := memory.New(brokers.Config{Params: brokers.Params{
		"prefetch": "50", "commit-interval": "1s",
		"nack-pause": "5ms",
	}})
	require.NoError(t, err)
	_, err = b.Subscriber(brokers.WithParam("nack-pause", "1s")).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Close())

	_, err = memory.New(brokers.Config{Params: brokers.Params{"nack-puase": "5ms"}})
	require.ErrorContains(t, err, "did you mean nack-pause?")
	_, err = memory.New(brokers.Config{URL: "mem://?prefetch=50"})
	require.ErrorContains(t, err, `unknown parameter "prefetch"`)
}

// heap returns the bytes in use. Garbage of other tests needs several collections, because pools keep it for one more.
func heap() uint64 {
	var now runtime.MemStats
	for last := uint64(math.MaxUint64); ; last = now.HeapAlloc {
		runtime.GC()
		if runtime.ReadMemStats(&now); now.HeapAlloc >= last {
			return now.HeapAlloc
		}
	}
}
