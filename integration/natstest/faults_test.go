package natstest

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// plain is a plain NATS client.
func plain(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	// The client's default timeouts, 2 s and 5 s, are too short for a slow server.
	conn, err := nats.Connect(strings.TrimPrefix(url, "nats://"), nats.Timeout(await.Patience))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(await.Patience))
	require.NoError(t, err)
	return js
}

// The server is killed while first deliveries and retries wait, and is down when they are due.
func TestRestart_WithMessagesWaiting(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	b := open(t, server.URL())
	l := newLedger()
	failed := atomic.Int32{}
	serve(t, server.URL(), func(m *message.Message) error {
		err := failsFirst(m)
		if err != nil {
			failed.Add(1)
			return err
		}
		l.handled(string(m.Payload))
		return nil
	}, "concurrency=4")
	const n = 100
	delayed := numbers(n, 2*n)
	for _, m := range delayed {
		envelope.SetDelay(m, 3*time.Second)
	}
	require.NoError(t, b.Publisher().Publish(topicOrders, delayed...))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, n)...))
	await.Count(t, n/10, func() int { return int(failed.Load()) })
	server.Kill()
	server.Up()
	l.wait(t, 2*n)
	different, total := l.counts()
	t.Logf("%d messages, %d of them more than once: a server that is killed forgets acks of its last moments", different,
		total-different)
}

// Connections are cut again and again, under the publisher and the consumer.
func TestNetwork_CutConnectionsLoseNothing(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	proxy := services.NewProxy(t, server.URL())
	url := proxy.URL(t, server.URL())
	l := newLedger()
	serve(t, url, recording(l), "ack-wait=1s", "concurrency=4", "prefetch=16")
	b := open(t, url)
	const n = 400
	for i, m := range numbers(0, n) {
		if i%80 == 40 {
			require.NoError(t, proxy.Flap())
		}
		publishUntil(t, b, m)
	}
	l.wait(t, n)
}

// The network stops with connections open, as behind a firewall that drops them: missing responses to pings reveal
// that.
func TestNetwork_AFrozenConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	proxy := services.NewProxy(t, server.URL())
	l := newLedger()
	serve(t, proxy.URL(t, server.URL()), recording(l), "ack-wait=1s")
	b := open(t, server.URL())
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 10)...))
	l.wait(t, 10)
	require.NoError(t, proxy.Freeze())
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(10, 20)...))
	require.NoError(t, proxy.Flap())
	l.wait(t, 20)
}

// Acks that the server does not get, here because the user may not send them, are given up before the messages are
// redelivered, even with a short ack-wait: then they are recognized, and handled once.
func TestAcks_LostOnesRunNothingTwice(t *testing.T) {
	t.Parallel()
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(),
		Users: []*server.User{{Username: "admin", Password: "admin"}, {
			Username: "billing", Password: "billing",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}},
		}},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(s.Shutdown)
	require.True(t, s.ReadyForConnections(await.Patience))
	admin := "nats://admin:admin@" + s.Addr().String()
	b, js := open(t, admin), plain(t, admin)
	l := newLedger()
	serve(t, "nats://billing:billing@"+s.Addr().String(), recording(l), "ack-wait=2s", "concurrency=4")
	const n = 4
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, n)...))
	l.wait(t, n)
	await.Count(t, 4*n, func() int { // each message has been redelivered several times
		c, err := js.Consumer(t.Context(), topicOrders, brokers.DefaultGroup)
		require.NoError(t, err)
		return int(c.CachedInfo().Delivered.Consumer)
	})
	_, total := l.counts()
	require.Equal(t, n, total)
}

// A handler that takes longer than ack-wait keeps its message even if another consumer has room for it.
func TestHandler_LongerThanAckWait(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	b := open(t, server.URL())
	var runs atomic.Int32
	done := make(chan struct{})
	stop := serve(t, server.URL(), func(*message.Message) error {
		runs.Add(1)
		<-done
		return nil
	}, "ack-wait=9s") // a process that is stopped for longer correctly loses its message
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 1)...))
	await.Count(t, 1, func() int { return int(runs.Load()) })
	l := newLedger()
	serve(t, server.URL(), recording(l), "ack-wait=9s")
	later := func(n int) { // as a clock: another consumer handles this message after twice ack-wait
		m := numbers(n, n+1)[0]
		envelope.SetDelay(m, 18*time.Second)
		require.NoError(t, b.Publisher().Publish(topicOrders, m))
	}
	later(10)
	l.wait(t, 1)
	close(done)
	stop()
	later(20)
	l.wait(t, 2)
	require.EqualValues(t, 1, runs.Load())
	_, total := l.counts()
	require.Equal(t, 2, total, "the other consumer got only the two")
}

// If an operator deletes the consumer, it is recreated after the last ack. If the stream is deleted, it is recreated,
// and every message published from then on is handled.
func TestDeleted_WhileRunning(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	l := newLedger()
	b := open(t, server.URL())
	serve(t, server.URL(), recording(l), "concurrency=4") // a short ack-wait might redeliver
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 49)...))
	l.wait(t, 49)
	last := numbers(49, 50)[0] // the positions of groups are stored every ten seconds; one of three may be late
	envelope.SetDelay(last, 35*time.Second)
	require.NoError(t, b.Publisher().Publish(topicOrders, last))
	l.wait(t, 50)

	require.NoError(t, js.DeleteConsumer(t.Context(), topicOrders, brokers.DefaultGroup))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(50, 100)...))
	l.wait(t, 100)
	_, total := l.counts()
	require.LessOrEqual(t, total, 101, "acked messages are not redelivered, except for the last one")

	require.NoError(t, js.DeleteStream(t.Context(), topicOrders))
	for _, m := range numbers(100, 150) {
		publishUntil(t, b, m)
	}
	l.wait(t, 150)

	// Its dead letters have no stream either.
	require.NoError(t, js.DeleteStream(t.Context(),
		strings.ReplaceAll(brokers.NameScheme{}.For(topicOrders, "").Dead, ".", "+")))
	require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: numbers(0, 1)[0], Reason: envelope.ReasonPermanent, Origin: envelope.Origin{Topic: topicOrders},
		At: time.Now(),
	}))
}

// The stream is deleted while the window is full, so that there is no open request to which the server could respond.
func TestDeleted_WithTheWindowFull(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	l := newLedger()
	b := open(t, server.URL())
	started, proceed := make(chan struct{}, 10), make(chan struct{})
	serve(t, server.URL(), func(m *message.Message) error {
		started <- struct{}{}
		<-proceed
		l.handled(string(m.Payload))
		return nil
	}, "concurrency=1", "prefetch=1")
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 1)...))
	<-started
	require.NoError(t, js.DeleteStream(t.Context(), topicOrders))
	close(proceed)
	l.wait(t, 1)
	for _, m := range numbers(1, 5) {
		publishUntil(t, b, m)
	}
	l.wait(t, 5)
}

// A message of the maximum size can be retried and dead-lettered; a larger one is refused.
func TestSize_PublishedMessagesCanBeRetried(t *testing.T) {
	t.Parallel()
	server := natsserver.Limited(t, 64<<10)
	b := open(t, server.URL())
	limit := int(b.Capabilities().MaxMessageBytes)
	letters := deadLetters(t, b)
	serve(t, server.URL(), func(*message.Message) error { return errors.New(strings.Repeat("the disk is full ", 5000)) })

	large := message.NewMessage("large", make([]byte, limit))
	require.NoError(t, b.Publisher().Publish(topicOrders, large))
	require.ErrorIs(t, b.Publisher().Publish(topicOrders, message.NewMessage("larger", make([]byte, limit+1))),
		brokers.ErrTooLarge)
	odd := message.NewMessage("odd", make([]byte, limit-3000))
	odd.Metadata["not plain"] = strings.Repeat("\n", 2900)
	require.ErrorIs(t, b.Publisher().Publish(topicOrders, odd), brokers.ErrTooLarge, "the encoding counts, too")
	select {
	case m := <-letters:
		require.Equal(t, "large", m.UUID)
		require.Len(t, m.Payload, limit)
		m.Ack()
	case <-time.After(await.Patience):
		require.FailNow(t, "no dead letter")
	}
}

// A foreign message that is larger than ours may be cannot be retried: it becomes a dead letter at once, with those of
// our headers that fit.
func TestSize_LargeForeignMessagesAreDeadLettered(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	server := natsserver.Limited(t, most)
	b := open(t, server.URL())
	letters := deadLetters(t, b)
	var runs atomic.Int32
	serve(t, server.URL(), func(*message.Message) error {
		runs.Add(1)
		return errors.New(strings.Repeat("the disk is full ", 5000))
	})
	_, err := plain(t, server.URL()).Publish(t.Context(), topicOrders, make([]byte, most-2<<10))
	require.NoError(t, err)
	select {
	case m := <-letters:
		require.Len(t, m.Payload, most-2<<10)
		m.Ack()
	case <-time.After(await.Patience):
		require.FailNow(t, "no dead letter")
	}
	require.EqualValues(t, 1, runs.Load())
}

// While the server is down and handlers fail, retries cannot be published. Nothing is lost, there is no hot loop, and
// every message is settled once the server is up again.
func TestPublishing_ImpossibleForAWhile(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	b := open(t, server.URL())
	l := newLedger()
	var runs atomic.Int32
	down := make(chan struct{})
	serve(t, server.URL(), func(m *message.Message) error {
		runs.Add(1)
		<-down
		if err := failsFirst(m); err != nil {
			return err
		}
		l.handled(string(m.Payload))
		return nil
	}, "ack-wait=1s", "concurrency=20", "publish-timeout=500ms")
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 20)...))
	await.Count(t, 20, func() int { return int(runs.Load()) })
	hasty, err := brokers.Open(t.Context(), with(server.URL(), "publish-timeout=500ms"))
	require.NoError(t, err)
	defer hasty.Close()
	server.Kill()
	close(down)
	for began := time.Now(); time.Since(began) < 5*time.Second; {
		require.Error(t, hasty.Publisher().Publish("others", numbers(99, 100)...))
	}
	t.Logf("%d runs", runs.Load())
	require.Less(t, runs.Load(), int32(20+2*30), "it is paced")
	server.Up()
	l.wait(t, 20)
}

// A stream with a limit set by an operator refuses messages: publishing returns an error, and a retry is repeated until
// it can be stored.
func TestPublishing_AFullStreamRefuses(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	b := open(t, server.URL())
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 10)...))
	s, err := js.Stream(t.Context(), topicOrders)
	require.NoError(t, err)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs, cfg.Discard = 10, jetstream.DiscardNew
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	require.ErrorContains(t, b.Publisher().Publish(topicOrders, numbers(10, 11)...), "maximum messages exceeded")

	l := newLedger()
	serve(t, server.URL(), recording(l), "prefetch=1")
	l.wait(t, 9) // all except the one whose first attempt fails
	cfg.MaxMsgs = -1
	_, err = js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	l.wait(t, 10)
}

// A stream that an operator created is used if it has the required settings; otherwise it is refused, and the error
// names the missing ones.
func TestStreams_OfTheOperator(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "SHOP", Subjects: []string{"orders", "invoices"}, Retention: jetstream.InterestPolicy,
	})
	require.NoError(t, err)
	b := open(t, server.URL())
	_, err = b.Subscriber().Subscribe(t.Context(), topicOrders)
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	require.ErrorContains(t, err, "stream SHOP")
	require.ErrorContains(t, err, "retention is Interest")
	require.ErrorContains(t, err, "redrive.orders.>")
	require.ErrorContains(t, err, "does not allow message schedules")

	require.NoError(t, js.DeleteStream(t.Context(), "SHOP"))
	await.True(t, func() bool { // while the server removes the folder of its last stream, it cannot create a new one
		_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
			Name: "STORE", Subjects: []string{"orders", "invoices", "redrive.orders.>"}, AllowMsgSchedules: true,
			AllowRollup: true,
		})
		return err == nil
	}, "the stream is not created")
	l := newLedger()
	serve(t, server.URL(), recording(l))
	for i := range 10 { // a producer without this module
		_, err = js.Publish(t.Context(), "orders", []byte(strconv.Itoa(i)))
		require.NoError(t, err)
	}
	l.wait(t, 10)

	strict := open(t, server.URL(), "declare=false")
	require.ErrorIs(t, strict.Publisher().Publish("unknown", numbers(0, 1)...), brokers.ErrUnroutable)
	_, err = strict.Subscriber().Subscribe(t.Context(), "unknown")
	require.ErrorIs(t, err, brokers.ErrUnroutable)
}

// A message that was retried and handled uses no space in the stream.
func TestStreams_DoNotKeepHandledRetries(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	js := plain(t, server.URL())
	b := open(t, server.URL())
	l := newLedger()
	serve(t, server.URL(), recording(l), "concurrency=4")
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 50)...))
	l.wait(t, 50)
	await.True(t, func() bool {
		s, err := js.Stream(t.Context(), topicOrders)
		require.NoError(t, err)
		info, err := s.Info(t.Context())
		require.NoError(t, err)
		return info.State.Msgs == 50
	}, "more than the topic's own messages are left")
}

// urlOf returns one URL for several servers.
func urlOf(servers []*natsserver.Server) string {
	var hosts []string
	for _, s := range servers {
		hosts = append(hosts, strings.TrimPrefix(s.URL(), "nats://"))
	}
	return "nats://" + strings.Join(hosts, ",")
}

// A cluster that starts has no leader for a moment, and never answers the requests of that time.
func TestCluster_OpenWhileItStarts(t *testing.T) {
	t.Parallel()
	b := open(t, urlOf(natsserver.Cluster(t)))
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topicOrders))
}

// Right after its leader was killed, a cluster has no leader for some seconds: a subscription waits until it has one.
func TestCluster_SubscribeWithoutALeader(t *testing.T) {
	t.Parallel()
	servers := natsserver.Cluster(t)
	url := urlOf(servers)
	b := open(t, url)
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topicOrders))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 20)...))
	killLeader(t, url, servers)
	l := newLedger()
	serve(t, url, recording(l))
	l.wait(t, 20)
}

// The leader of a stream with three replicas is killed under load and restarted.
func TestCluster_LeaderIsKilled(t *testing.T) {
	t.Parallel()
	servers := natsserver.Cluster(t)
	url := urlOf(servers)
	// A publication that a killed leader had not stored yet is never confirmed.
	b, err := opened(t.Context(), with(url, "publish-timeout=5s"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topicOrders))
	l := newLedger()
	serve(t, url, recording(l), "ack-wait=1s", "concurrency=4", "prefetch=16")
	const n = 300
	var killed *natsserver.Server
	for i, m := range numbers(0, n) {
		switch i {
		case n / 3:
			killed = killLeader(t, url, servers)
		case 2 * n / 3:
			killed.Up()
		}
		publishUntil(t, b, m)
	}
	l.wait(t, n)
	different, total := l.counts()
	t.Logf("%d messages, %d of them more than once", n, total-different)
}

func killLeader(t *testing.T, url string, servers []*natsserver.Server) *natsserver.Server {
	t.Helper()
	conn, err := nats.Connect(url, nats.Timeout(await.Patience))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn) // not plain, which waits long for a request that is never answered
	require.NoError(t, err)
	var info *jetstream.StreamInfo
	await.True(t, func() bool { // a slow server has lost its leadership, and for a moment there is no leader
		s, err := js.Stream(t.Context(), topicOrders)
		if err != nil {
			return false
		}
		info = s.CachedInfo()
		require.NotNil(t, info.Cluster)
		return info.Cluster.Leader != ""
	}, "the stream has no leader")
	require.Len(t, info.Cluster.Replicas, 2, "a stream has three replicas on a cluster")
	for _, s := range servers {
		if s.Name() == info.Cluster.Leader {
			s.Kill()
			return s
		}
	}
	require.FailNow(t, "no such server", info.Cluster.Leader)
	return nil
}
