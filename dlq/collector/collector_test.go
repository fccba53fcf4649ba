package collector_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the SQL driver

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/envelope"
)

var quiet = slog.New(slog.DiscardHandler)

func newLetters(t *testing.T) *dlq.Letters {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+storetest.File(t)+"?synchronous=normal", dlq.WithoutSpool(),
		dlq.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	return letters
}

func newMemory(t *testing.T, cfg brokers.Config) *memory.Broker {
	t.Helper()
	b, err := memory.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// consumed creates the group's queue, which keeps messages after the consumer has stopped.
func consumed(t *testing.T, b *memory.Broker, topic, group string) {
	t.Helper()
	consumer := b.Subscriber(brokers.WithGroup(group))
	_, err := consumer.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, consumer.Close())
}

// start runs a collector until the test ends or stop is called.
func start(t *testing.T, cfg collector.Config) (c *collector.Collector, stop func()) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	c, err := collector.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err) // not FailNow, which ends a OnceFunc with a panic, and the other tests with it
		}
	})
	t.Cleanup(stop)
	return c, stop
}

func entries(t *testing.T, letters *dlq.Letters) []dlq.Entry {
	t.Helper()
	list, err := letters.Store().List(t.Context(), dlq.Filter{},
		dlq.Page{Order: driver.OldestFirst, Limit: driver.MaxPage})
	require.NoError(t, err)
	return list.Entries
}

// eventually waits until n messages are collected.
func collected(t *testing.T, c *collector.Collector, n int64) {
	t.Helper()
	require.Eventually(t, func() bool {
		var sum int64
		for _, s := range c.Stats() {
			sum += s.Collected
		}
		return sum >= n
	}, 2*time.Minute, 5*time.Millisecond)
}

func deadLetter(t *testing.T, b *memory.Broker, topic, group, id string) {
	t.Helper()
	consumed(t, b, topic, group)
	m := message.NewMessage(id, []byte(`{"order":"`+id+`"}`))
	m.Metadata["tenant"] = "acme"
	dead := envelope.RecordFailure(m, envelope.Failure{
		Err: envelope.Error{Message: "bank: timeout", Code: "504"}, Class: "*bank.Error", Retry: 4,
		Reason: envelope.ReasonExhausted, Rule: "exhausted after 4 attempts", Handler: "pay", Topic: topic,
	})
	require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: dead, Reason: envelope.ReasonExhausted,
		Origin: envelope.Origin{Broker: "mem", Topic: topic, Consumer: group},
	}))
}

// Two brokers at once; a collected message returns to its consumer, and its entry closes with the broker's confirm.
func TestCollector_SeveralBrokersAndBack(t *testing.T) {
	t.Parallel()
	letters := newLetters(t)
	east, west := newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{})
	deadLetter(t, east, "orders", "billing", "1")
	deadLetter(t, west, "orders", "billing", "2")
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "east", Topic: "orders.billing_dlq", Subscriber: east.Subscriber()},
		{Broker: "west", Topic: "orders.billing_dlq", Subscriber: west.Subscriber()},
	}})
	collected(t, c, 2)

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "east", Scheme: "mem", Redriver: east}, {Name: "west", Scheme: "mem", Redriver: west},
	}})
	require.NoError(t, err)
	manager := letters.Manager(router)
	all := entries(t, letters)
	require.Len(t, all, 2)
	for _, e := range all {
		require.Equal(t, "orders", e.Origin.Topic)
		require.Equal(t, "billing", e.Origin.Consumer)
		require.Equal(t, "bank: timeout", e.ErrorMessage)
		require.Equal(t, "504", e.ErrorCode)
		require.Equal(t, "*bank.Error", e.ErrorClass)
		require.Equal(t, "pay", e.Handler)
		require.Equal(t, 4, e.Attempts)
		require.Equal(t, envelope.ReasonExhausted, e.Reason)
		_, err := manager.Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
		require.NoError(t, err)

		broker := map[string]*memory.Broker{"1": east, "2": west}[e.EventID]
		back := broker.Peek("orders", "billing")
		require.Len(t, back, 1, "sent to its own broker")
		require.Equal(t, e.EventID, back[0].Metadata[envelope.KeyMessageID])
		require.Equal(t, "acme", back[0].Metadata["tenant"])
		require.Equal(t, driver.FormatID(e.ID), back[0].Metadata[envelope.KeyRedriveID])
		require.NotContains(t, back[0].Metadata, "x-collected-broker")
		require.NotContains(t, back[0].Metadata, envelope.KeyDeadLetterReason)

		closed, err := manager.Get(t.Context(), e.ID)
		require.NoError(t, err)
		require.Equal(t, dlq.Resolved, closed.Status)
		require.Equal(t, "redrive", closed.ResolvedBy)
	}
}

// collectedOne starts a collector, which has stored the only dead letter of a broker.
func collectedOne(t *testing.T) (*dlq.Letters, *memory.Broker, *collector.Collector) {
	t.Helper()
	letters := newLetters(t)
	b := newMemory(t, brokers.Config{})
	deadLetter(t, b, "orders", "", "1")
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber()},
	}})
	collected(t, c, 1)
	return letters, b, c
}

// The consumer that reports is waited for.
func TestRouter_OutcomeReported(t *testing.T) {
	t.Parallel()
	letters, b, _ := collectedOne(t)
	router, err := collector.NewRouter(collector.RouterConfig{Targets: []collector.Target{
		{Name: "main", Scheme: "mem", Redriver: b, Outcome: collector.OutcomeReported},
	}})
	require.NoError(t, err)
	manager := letters.Manager(router)
	e, err := manager.Redrive(t.Context(), entries(t, letters)[0].ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.Equal(t, dlq.Retrying, e.Status)
	require.NoError(t, letters.Redriven(t.Context(), envelope.Redriven{
		EntryID: driver.FormatID(e.ID), Number: 1, MessageID: e.EventID, At: time.Now(),
	}))
	e, err = manager.Get(t.Context(), e.ID)
	require.NoError(t, err)
	require.Equal(t, dlq.Resolved, e.Status)
}

// A second death finds the entry of the first, which had been closed with the confirm: same row, PENDING again.
func TestCollector_DiesAgain(t *testing.T) {
	t.Parallel()
	letters, b, c := collectedOne(t)
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Targets: []collector.Target{{Name: "main", Scheme: "mem", Redriver: b}},
	})
	require.NoError(t, err)
	first := entries(t, letters)[0]
	_, err = letters.Manager(router).Redrive(t.Context(), first.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)

	consumer, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	m := <-consumer
	again := envelope.RecordFailure(m, envelope.Failure{
		Err: envelope.Error{Message: "still no bank"}, Retry: 1, Reason: envelope.ReasonPermanent, Handler: "pay",
		Topic: "orders",
	})
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: again, Origin: *origin}))
	m.Ack()
	collected(t, c, 2)

	all := entries(t, letters)
	require.Len(t, all, 1, "one row for one message")
	require.Equal(t, dlq.Pending, all[0].Status)
	require.Equal(t, "still no bank", all[0].ErrorMessage)
	require.Equal(t, 1, all[0].RedriveCount)
}

// A fast consumer rejects the message again before its batch is confirmed: the confirm closes nothing that waits again.
func TestRouter_DiesBeforeTheConfirm(t *testing.T) {
	t.Parallel()
	letters, _, _ := collectedOne(t)
	dies := func(ctx context.Context, origin envelope.Origin, m *message.Message, _ time.Duration) error {
		return letters.DeadLetter(ctx, &envelope.DeadLetter{
			Message: m, Err: envelope.Error{Message: "still no bank"}, Origin: origin,
		})
	}
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Logger: quiet,
		Targets: []collector.Target{{Name: "main", Scheme: "mem", Redriver: dlq.RedriverFunc(dies)}},
	})
	require.NoError(t, err)
	_, err = letters.Manager(router).Redrive(t.Context(), entries(t, letters)[0].ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	all := entries(t, letters)
	require.Len(t, all, 1)
	require.Equal(t, []any{dlq.Pending, "still no bank"}, []any{all[0].Status, all[0].ErrorMessage})
}

// moody is a sink that fails until it is healed, and counts calls.
type moody struct {
	mu    sync.Mutex
	down  bool
	tries int
	kept  []string
}

func (s *moody) DeadLetter(_ context.Context, d *envelope.DeadLetter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tries++
	if s.down {
		return errors.New("store is down")
	}
	s.kept = append(s.kept, d.Message.UUID)
	return nil
}

func (s *moody) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// While the store is down nothing is acked and nothing spins; when it is back everything is stored, once.
func TestCollector_StoreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		for i := range 20 {
			require.NoError(t, b.Publisher().Publish("orders_dlq", message.NewMessage(strconv.Itoa(i), nil)))
		}
		sink := &moody{down: true}
		c, stop := start(t, collector.Config{Sink: sink, Sources: []collector.Source{
			{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber(brokers.WithConcurrency(5))},
		}})
		time.Sleep(10 * time.Minute) // of virtual time
		synctest.Wait()
		require.Empty(t, sink.kept)
		require.Less(t, sink.tries, 10*60*5, "less than once a second for each of five that are held")
		depth := b.Depth("orders_dlq", "")
		require.Equal(t, 20, depth.Ready+depth.Waiting+depth.InFlight, "none is acked")
		require.Contains(t, c.Stats()[0].Err, "store is down")
		require.Positive(t, c.Stats()[0].GivenBack, "those behind get their turn")

		sink.set(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Len(t, sink.kept, 20)
		require.Empty(t, c.Stats()[0].Err)
		require.Zero(t, c.Stats()[0].Held)
		require.Zero(t, b.Depth("orders_dlq", ""))
		stop()
	})
}

// Shutdown while the store is down: the letters in flight are returned at once, for the next process.
func TestCollector_ShutdownReturnsMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		for i := range 3 {
			require.NoError(t, b.Publisher().Publish("orders_dlq", message.NewMessage(strconv.Itoa(i), nil)))
		}
		c, stop := start(t, collector.Config{Sink: &moody{down: true}, Sources: []collector.Source{
			{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber(brokers.WithConcurrency(5))},
		}})
		synctest.Wait()
		began := time.Now()
		stop()
		require.Zero(t, time.Since(began), "no caller waits for a pause to end")
		require.False(t, c.Stats()[0].Subscribed)
		depth := b.Depth("orders_dlq", "")
		require.Equal(t, 3, depth.Ready+depth.Waiting)
		require.NoError(t, b.Close())
	})
}

// slow ignores its context.
type slow struct {
	moody
	begun  chan struct{}
	finish chan struct{}
}

func (s *slow) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	close(s.begun)
	<-s.finish
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.moody.DeadLetter(ctx, d)
}

// Shutdown while the store works: the work is finished and acked, not thrown away.
func TestCollector_ShutdownFinishes(t *testing.T) {
	t.Parallel()
	b := newMemory(t, brokers.Config{})
	require.NoError(t, b.Publisher().Publish("orders_dlq", message.NewMessage("1", nil)))
	sink := &slow{begun: make(chan struct{}), finish: make(chan struct{})}
	_, stop := start(t, collector.Config{Sink: sink, Sources: []collector.Source{
		{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber()},
	}})
	<-sink.begun
	time.AfterFunc(20*time.Millisecond, func() { close(sink.finish) })
	stop()
	require.Equal(t, []string{"1"}, sink.kept)
	require.Zero(t, b.Depth("orders_dlq", ""))
}

// faulty fails its first subscriptions, like a broker that is down.
type faulty struct {
	message.Subscriber
	mu    sync.Mutex
	fails int
	at    []time.Time
}

func (f *faulty) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = append(f.at, time.Now())
	if len(f.at) <= f.fails {
		return nil, errors.New("connection refused")
	}
	return f.Subscriber.Subscribe(ctx, topic)
}

// A broker that is down does not stop the others, and is tried again with growing pauses.
func TestCollector_BrokerDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		require.NoError(t, b.Publisher().Publish("a_dlq", message.NewMessage("a", nil)))
		require.NoError(t, b.Publisher().Publish("b_dlq", message.NewMessage("b", nil)))
		down := &faulty{Subscriber: b.Subscriber(), fails: 4}
		sink := &moody{}
		c, stop := start(t, collector.Config{Sink: sink, Sources: []collector.Source{
			{Broker: "down", Topic: "a_dlq", Subscriber: down}, {Broker: "up", Topic: "b_dlq", Subscriber: b.Subscriber()},
		}})
		synctest.Wait()
		require.Equal(t, []string{"b"}, sink.kept)
		require.Equal(t, "connection refused", c.Stats()[0].Err)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"b", "a"}, sink.kept)
		var pauses []time.Duration
		for i := range down.at[1:] {
			pauses = append(pauses, down.at[i+1].Sub(down.at[i]))
		}
		require.Equal(t, []time.Duration{
			200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond,
		}, pauses)
		require.Empty(t, c.Stats()[0].Err)
		stop()
	})
}

// A crash between store and ack: the broker delivers once more, and there is one entry.
func TestCollector_Idempotent(t *testing.T) {
	t.Parallel()
	letters := newLetters(t)
	b := newMemory(t, brokers.Config{})
	for range 3 {
		deadLetter(t, b, "orders", "", "1")
	}
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber()},
	}})
	collected(t, c, 3)
	all := entries(t, letters)
	require.Len(t, all, 1)
	require.Equal(t, 3, all[0].SeenCount)
}

func TestNew_ReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := collector.New(collector.Config{
		Sources:  []collector.Source{{Topic: "x"}},
		Formats:  []collector.Format{{}},
		RetryMin: time.Hour,
	})
	for _, want := range []string{"sink: required", "source 0: broker", "format 0: name", "retry 1h0m0s"} {
		require.ErrorContains(t, err, want)
	}
	_, err = collector.New(collector.Config{Sink: &moody{}})
	require.ErrorContains(t, err, "at least one")

	_, err = collector.NewRouter(collector.RouterConfig{Targets: []collector.Target{
		{Name: "a"},
		{Name: "a", Outcome: "maybe"},
	}})
	for _, want := range []string{"target 0: name, scheme", "target 1"} {
		require.ErrorContains(t, err, want)
	}
	_, err = collector.NewRouter(collector.RouterConfig{})
	require.ErrorContains(t, err, "at least one")
}

// A message that cannot be routed is refused with an error that names the remedy, and its entry is PENDING again.
func TestRouter_Refuses(t *testing.T) {
	t.Parallel()
	b := newMemory(t, brokers.Config{})
	router, err := collector.NewRouter(collector.RouterConfig{Targets: []collector.Target{
		{Name: "east", Scheme: "amqp", Redriver: b, Outcome: collector.OutcomeReported},
		{Name: "west", Scheme: "amqp", Redriver: b, Outcome: collector.OutcomeReported},
		{Name: "log", Scheme: "kafka", Redriver: b, Outcome: collector.OutcomeReported},
	}})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		origin envelope.Origin
		broker string
		want   string
	}{
		"two brokers of one scheme": {envelope.Origin{Broker: "amqps", Topic: "t"}, "", "there are 2 of them"},
		"no broker of the scheme":   {envelope.Origin{Broker: "mysql", Topic: "t"}, "", `scheme "mysql"`},
		"a broker that is gone": {
			envelope.Origin{Broker: "amqp", Topic: "t"},
			"north",
			`broker "north", which is not configured: known are east (amqp)`,
		},
		"nothing known":        {envelope.Origin{Broker: "kafka"}, "", "set the origin"},
		"a plain subscriber's": {envelope.Origin{Topic: "t"}, "", "publish its payload yourself"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := message.NewMessage("1", nil)
			if test.broker != "" {
				m.SetContext(driver.WithCollected(m.Context(), envelope.Collected{Broker: test.broker}))
			}
			require.ErrorContains(t, router.Reschedule(t.Context(), test.origin, m, 0), test.want)
		})
	}
}

// A URL may spell the scheme of a broker in several ways, and entries name one of them.
func TestRouter_KnowsEverySpelling(t *testing.T) {
	t.Parallel()
	for configured, named := range map[string]string{
		"nats+tls": "nats", "amqps": "amqp", "postgresql": "postgres", "mariadb": "mysql",
		"watermill+amqps": "watermill+amqp", "watermill+postgresql": "watermill+postgres",
	} {
		b := newMemory(t, brokers.Config{Group: "billing"})
		router, err := collector.NewRouter(collector.RouterConfig{Targets: []collector.Target{
			{Name: "one", Scheme: configured, Redriver: b, Outcome: collector.OutcomeReported},
			{Name: "none", Scheme: "watermill+kafka", Redriver: b, Outcome: collector.OutcomeReported},
		}})
		require.NoError(t, err)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		origin := envelope.Origin{Broker: named, Topic: "orders", Consumer: "billing"}
		require.NoError(t, router.Reschedule(t.Context(), origin, message.NewMessage(named, nil), 0), configured)
		(<-messages).Ack()
	}
}
