package natstest

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// A stream whose settings lose messages, or leave them undelivered, is refused when a consumer subscribes, for the
// topic and for its dead letters, and the error names the setting.
func TestStreams_ThatLoseMessagesAreRefused(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	first := open(t, server.URL()).Subscriber().(message.SubscribeInitializer)
	require.NoError(t, first.SubscribeInitialize(topicOrders))
	for name, c := range map[string]struct {
		set    func(*jetstream.StreamConfig)
		says   string
		params []string
	}{
		"one message a subject": {
			set:  func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
			says: "max_msgs_per_subject loses retries",
		},
		"the oldest give way": {
			set:  func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1000, jetstream.DiscardOld },
			says: "discards old messages",
		},
		"the oldest bytes give way": {
			set:  func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = 1<<20, jetstream.DiscardOld },
			says: "discards old messages",
		},
		"age": {
			set:  func(c *jetstream.StreamConfig) { c.MaxAge = 2 * time.Hour },
			says: "after 2h0m0s: remove its max_age, or set x-max-age",
		},
		"an age below that of the URL": {
			set:    func(c *jetstream.StreamConfig) { c.MaxAge = 2 * time.Hour },
			says:   "after 2h0m0s: remove its max_age, or set x-max-age",
			params: []string{"max-age=3h"},
		},
		"the age of the URL": {
			set:    func(c *jetstream.StreamConfig) { c.MaxAge = 2 * time.Hour },
			params: []string{"max-age=2h"},
		},
		"small messages": {
			set:  func(c *jetstream.StreamConfig) { c.MaxMsgSize = 64 << 10 },
			says: "max_msg_size",
		},
		"large messages": {
			set: func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1 << 20 },
		},
		"another subject": {
			set: func(c *jetstream.StreamConfig) {
				c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: topicOrders, Destination: "others"}
			},
			says: "subject transform",
		},
		"no confirms": {
			set:  func(c *jetstream.StreamConfig) { c.NoAck = true },
			says: "no_ack",
		},
		"a full stream refuses": {
			set: func(c *jetstream.StreamConfig) { c.MaxMsgs, c.MaxBytes, c.Discard = 1000, 1<<20, jetstream.DiscardNew },
		},
	} {
		s, err := js.Stream(t.Context(), topicOrders)
		require.NoError(t, err)
		cfg := s.CachedInfo().Config
		c.set(&cfg)
		_, err = js.UpdateStream(t.Context(), cfg)
		require.NoError(t, err, name)
		b := open(t, server.URL(), c.params...)
		for topic, naming := range map[string]brokers.NameScheme{topicOrders: {}, "shipments": {Dead: topicOrders}} {
			sub := b.Subscriber()
			if topic != topicOrders {
				sub = open(t, server.URL(), append(c.params, "dead="+naming.Dead)...).Subscriber()
			}
			err = sub.(message.SubscribeInitializer).SubscribeInitialize(topic)
			if c.says == "" {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorIs(t, err, brokers.ErrUnsupported, name)
			require.ErrorContains(t, err, c.says, name)
		}
		_, err = js.UpdateStream(t.Context(), s.CachedInfo().Config)
		require.NoError(t, err, name)
		// A case that may subscribe makes this stream with the max-age of its URL, and the next case has another URL.
		if err = js.DeleteStream(t.Context(), "shipments"); !errors.Is(err, jetstream.ErrStreamNotFound) {
			require.NoError(t, err, name)
		}
	}
}

// consumerEdits are what an operator may do to a consumer that loses messages or leaves them undelivered.
var consumerEdits = map[string]func(*jetstream.ConsumerConfig){
	"deliveries are limited": func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 },
	"without payloads":       func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true },
	"backoff":                func(c *jetstream.ConsumerConfig) { c.BackOff = []time.Duration{time.Minute, time.Second} },
	"without retries": func(c *jetstream.ConsumerConfig) {
		c.FilterSubject, c.FilterSubjects = topicOrders, nil
	},
	"everything":      func(c *jetstream.ConsumerConfig) { c.FilterSubjects = nil },
	"small requests":  func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch = 1 },
	"short requests":  func(c *jetstream.ConsumerConfig) { c.MaxRequestExpires = time.Second },
	"requested bytes": func(c *jetstream.ConsumerConfig) { c.MaxRequestMaxBytes = 100 },
	"priorities": func(c *jetstream.ConsumerConfig) {
		c.PriorityPolicy, c.PriorityGroups = jetstream.PriorityPolicyOverflow, []string{"a"}
	},
}

// editConsumer changes the consumer on orders and returns its earlier configuration.
func editConsumer(t *testing.T, js jetstream.JetStream, edit func(*jetstream.ConsumerConfig)) jetstream.ConsumerConfig {
	t.Helper()
	before := consumerConfig(t, js)
	after := before
	edit(&after)
	_, err := js.UpdateConsumer(t.Context(), topicOrders, after)
	require.NoError(t, err)
	return before
}

func consumerConfig(t *testing.T, js jetstream.JetStream) jetstream.ConsumerConfig {
	t.Helper()
	c, err := js.Consumer(t.Context(), topicOrders, brokers.DefaultGroup)
	require.NoError(t, err)
	return c.CachedInfo().Config
}

// A consumer that an operator has edited is changed back, before it is read and while it is read, and every message is
// handled with its payload. With declare=false it is refused.
func TestConsumers_EditedByTheOperator(t *testing.T) {
	t.Parallel()
	for name, edit := range consumerEdits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natsserver.Start(t)
			js := plain(t, server.URL())
			b := open(t, server.URL())
			require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topicOrders))
			before := editConsumer(t, js, edit)

			strict := open(t, server.URL(), "declare=false")
			_, err := strict.Subscriber().Subscribe(t.Context(), topicOrders)
			require.ErrorIs(t, err, brokers.ErrUnsupported)
			require.ErrorContains(t, err, "max_deliver to -1")

			require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 10)...))
			l := newLedger()
			serve(t, server.URL(), recording(l), "concurrency=4")
			l.wait(t, 10)
			editConsumer(t, js, edit)
			await.True(t, func() bool {
				return len(consumerConfig(t, js).FilterSubjects) == len(before.FilterSubjects) &&
					consumerConfig(t, js).HeadersOnly == before.HeadersOnly &&
					consumerConfig(t, js).MaxDeliver == before.MaxDeliver &&
					len(consumerConfig(t, js).BackOff) == 0 && consumerConfig(t, js).MaxRequestBatch == 0 &&
					consumerConfig(t, js).MaxRequestExpires == 0 && consumerConfig(t, js).MaxRequestMaxBytes == 0 &&
					len(consumerConfig(t, js).PriorityGroups) == 0
			}, "it is not changed back")
			require.NoError(t, b.Publisher().Publish(topicOrders, numbers(10, 20)...))
			l.wait(t, 20)
			for i := range 20 {
				require.Equal(t, 1, l.times[strconv.Itoa(i)], "message %d", i)
			}
		})
	}
}

// An edited consumer refuses the next request for messages: it is changed back at once, instead of refusing those of
// each session.
func TestConsumers_RefusedRequests(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"small requests", "short requests", "priorities"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := natsserver.Start(t)
			js := plain(t, server.URL())
			b := open(t, server.URL())
			l := newLedger()
			serve(t, server.URL(), recording(l), "concurrency=4")
			require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 10)...))
			l.wait(t, 10)
			editConsumer(t, js, consumerEdits[name])
			const n = 300 // more than a session requests in advance
			require.NoError(t, b.Publisher().Publish(topicOrders, numbers(10, n)...))
			l.wait(t, n)
			for i := range n {
				require.Equal(t, 1, l.times[strconv.Itoa(i)], "message %d", i)
			}
		})
	}
}

// Processes with different ack-waits share a consumer, during a deployment that changes it: each extends the deadlines
// of its messages often enough for what the consumer has.
func TestConsumers_AnotherProcessHasAShorterAckWait(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	b := open(t, server.URL())
	l, blocked, done := newLedger(), atomic.Int32{}, make(chan struct{})
	handle := func(m *message.Message) error {
		if m.UUID == "slow" {
			blocked.Add(1)
			<-done
		}
		l.handled(string(m.Payload))
		return nil
	}
	defer close(done)
	serve(t, server.URL(), handle, "ack-wait=60s", "concurrency=4")
	serve(t, server.URL(), handle, "ack-wait=3s", "concurrency=4")
	clock := func(n int) { // both processes look at the consumer every 10 s
		m := numbers(n, n+1)[0]
		envelope.SetDelay(m, 12*time.Second)
		require.NoError(t, b.Publisher().Publish(topicOrders, m))
		l.wait(t, n)
	}
	clock(1)
	for range 8 { // some of which the first process gets
		require.NoError(t, b.Publisher().Publish(topicOrders, message.NewMessage("slow", []byte("slow"))))
	}
	await.Count(t, 8, func() int { return int(blocked.Load()) })
	done <- struct{}{} // room for the clock
	clock(3)
	require.EqualValues(t, 8, blocked.Load(), "a message was delivered again while its handler was running")
}

// Two topics share a stream of the operator, and a group subscribes to both, at first only to one of them: every
// message reaches its own topic's handler once, retries included, also after a restart in another order. If the
// consumer with the group's name is deleted, the other topic keeps its position.
func TestConsumers_TwoTopicsShareAStreamAndAGroup(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "SHOP", Subjects: []string{"shop.>", "redrive.shop+orders.>", "redrive.shop+mails.>"},
		AllowMsgSchedules: true, AllowRollup: true,
	})
	require.NoError(t, err)
	l := newLedger()
	group := strings.Repeat("billing", 25) // the name of the second topic's consumer is too long, and is shortened
	subscribe := func(topics ...string) brokers.Broker {
		b, err := opened(t.Context(), with(server.URL(), "dead=letters", "prefetch=4", "group="+group))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		for _, topic := range topics {
			messages, err := b.Subscriber().Subscribe(t.Context(), topic)
			require.NoError(t, err)
			go func() {
				for m := range messages {
					origin, _ := envelope.OriginFrom(m.Context())
					if n := string(m.Payload); n[len(n)-1] == '3' && m.Metadata["again"] == "" {
						again := m.Copy()
						again.Metadata["again"] = "yes"
						if err := b.Reschedule(m.Context(), *origin, again, time.Millisecond); err != nil {
							m.Nack()
							continue
						}
					} else {
						l.handled(topic + " " + n)
					}
					m.Ack()
				}
			}()
		}
		return b
	}
	published := 0
	exchange := func(topics ...string) {
		for _, topic := range topics {
			for i := range 10 {
				_, err := js.Publish(t.Context(), topic, []byte(topic+strconv.Itoa(i+published)))
				require.NoError(t, err)
			}
		}
		published += 10
	}
	const orders, mails = "shop.orders", "shop.mails"
	alone := subscribe(orders)
	exchange(orders)
	l.wait(t, 10)
	require.NoError(t, alone.Close())

	together := subscribe(orders, mails)
	exchange(orders, mails)
	l.wait(t, 30)
	require.NoError(t, together.Close())

	restarted := subscribe(mails, orders)
	exchange(mails, orders)
	l.wait(t, 50)
	depths, err := restarted.(brokers.DepthReporter).Depths(t.Context())
	require.NoError(t, err)
	for _, depth := range depths {
		require.Contains(t, []string{"", group}, depth.Group)
	}
	once := func(topic string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for of, times := range l.times {
			handler, payload, _ := strings.Cut(of, " ")
			require.True(t, strings.HasPrefix(payload, handler), "%s is another topic's", of)
			if strings.HasPrefix(of, topic) {
				require.Equal(t, 1, times, of)
			}
		}
	}
	once("")
	require.NoError(t, restarted.Close())
	require.NoError(t, js.DeleteConsumer(t.Context(), "SHOP", group))
	subscribe(mails, orders)
	exchange(mails, orders)
	l.wait(t, 70)
	once(mails) // those of orders start over
}

// Publications that the server never answers must not use up the client's limit of unanswered ones: other topics and
// retries are still stored.
func TestPublishing_WithoutAnswersDoesNotStopOthers(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	_, err := plain(t, server.URL()).CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "silent", Subjects: []string{"silent"}, NoAck: true,
	})
	require.NoError(t, err)
	b, err := opened(t.Context(), with(server.URL(), "publish-timeout=2s"))
	require.NoError(t, err)
	defer b.Close()
	require.Error(t, b.Publisher().Publish("silent", numbers(0, 4100)...))
	publishUntil(t, b, numbers(0, 1)[0])
}

// A long batch over a slow connection waits for the server, instead of failing in the middle.
func TestPublishing_ALongBatchOverASlowConnection(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	proxy := services.NewProxy(t, server.URL())
	b := open(t, proxy.URL(t, server.URL()))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 1)...))
	require.NoError(t, proxy.Delay(time.Second))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(1, 9000)...))
}

// A foreign message with a copied suspect mark and an id by which the server recognizes duplicates is not lost when the
// consumer stops while it waits for its turn.
func TestSuspects_AForeignMarkLosesNothing(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	b := open(t, server.URL())
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topicOrders))
	const n = 5
	for i := range n {
		m := nats.NewMsg(topicOrders)
		m.Data = []byte(strconv.Itoa(i))
		m.Header = nats.Header{envelope.KeySuspect: {"0"}, "Nats-Msg-Id": {"order " + strconv.Itoa(i)}}
		_, err := js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	started := make(chan struct{}, n)
	stop := serve(t, server.URL(), func(m *message.Message) error {
		started <- struct{}{}
		<-m.Context().Done()
		return errors.New("stopped")
	}, "concurrency=5", "drain=50ms")
	select {
	case <-started:
	case <-time.After(await.Patience):
		require.FailNow(t, "nothing is delivered")
	}
	stop()
	l := newLedger()
	serve(t, server.URL(), recording(l), "concurrency=5")
	l.wait(t, n)
}

// What only we write, on the subject of a group's retries, is ignored on the topic's subject, where any producer may
// write it: the messages run at once, and all of them.
func TestHeaders_ForgedOnesAreIgnored(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	for name, header := range map[string]nats.Header{
		"suspects":         {envelope.KeySuspect: {"0!"}},
		"encoded suspects": {"Redrive-Headers": {envelope.KeySuspect + "=0%21"}},
		"copies of one retry": {
			envelope.KeyStage: {"r" + strings.Repeat("A", 20)}, "_watermill_message_uuid": {"copied"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 5
			topic := strings.ReplaceAll(name, " ", "-")
			b := open(t, server.URL(), "concurrency=5")
			messages, err := b.Subscriber().Subscribe(t.Context(), topic)
			require.NoError(t, err)
			for range n {
				_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: topic, Header: header, Data: []byte("order")})
				require.NoError(t, err)
			}
			var running []*message.Message
			for range n {
				select {
				case m := <-messages:
					running = append(running, m)
				case <-time.After(await.Patience):
					require.FailNow(t, "some do not run", "%d run", len(running))
				}
				if name == "copies of one retry" {
					running[len(running)-1].Ack() // a copy of a settled one would be dropped
				}
			}
			for _, m := range running {
				m.Ack()
			}
		})
	}
}
