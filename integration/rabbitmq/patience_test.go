package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// A caller that gives up while the broker is slow ends neither the connection nor the publications of others, which
// would be repeated on another connection and stored twice.
func TestPublish_ACallerThatGivesUpEndsNoOthers(t *testing.T) {
	t.Parallel()
	server := borrowSecond(t, true)
	url := server.VHost(t)
	p := dialPlain(t, url)
	log := &logbuffer.Buffer{}
	b := openBroker(t, url, delays(time.Hour), params("grid", "false"), group("billing"),
		func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	plan := b.Plan("orders")
	require.NoError(t, b.Apply(t.Context(), plan))
	retry := func(ctx context.Context, id string) error {
		origin := envelope.Origin{Broker: "amqp", Topic: "orders", Consumer: "orders.billing"}
		return b.Reschedule(ctx, origin, message.NewMessage(id, nil), time.Hour)
	}
	require.NoError(t, retry(t.Context(), "declares the queue"))

	require.NoError(t, server.Pause())
	patient := make(chan error, 2)
	go func() { patient <- retry(t.Context(), "sent before") }()
	hasty, cancel := context.WithTimeout(t.Context(), 2*time.Second) // even a busy machine sends it before
	defer cancel()
	require.ErrorIs(t, retry(hasty, "given up"), context.DeadlineExceeded)
	_, err := b.Check(hasty, plan)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go func() { patient <- retry(t.Context(), "sent after") }()
	require.NoError(t, server.Resume())
	require.NoError(t, <-patient)
	require.NoError(t, <-patient)
	require.NotContains(t, log.String(), "connection lost")
	require.Equal(t, 4, p.depth("orders.billing_retry.3600000"), "each is stored once, even the one given up")
}

// A cluster accepts clients before its quorum queues have leaders. RabbitMQ then ends the connection of a consumer with
// an internal error, and a service that started meanwhile ended too.
func TestSubscribe_QuorumQueueWithoutALeader(t *testing.T) {
	t.Parallel()
	server := services.SharedRabbitMQ(t)
	url, log := server.VHost(t), &logbuffer.Buffer{}
	b := openBroker(t, url, params("grid", "false"), group("billing"),
		func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
	// One command stops the queue and restarts it: Subscribe tries for 30 seconds, and a busy machine may need longer than
	// that to start rabbitmqctl. It connects to us when the queue is down, and waits for a byte.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := server.Ctl(t.Context(), "eval", fmt.Sprintf(
			`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"orders.billing">>)),
			ok = ra:stop_server(quorum_queues, amqqueue:get_pid(Q)),
			{ok, Test} = gen_tcp:connect("127.0.0.1", %d, [{active, false}]),
			{ok, _} = gen_tcp:recv(Test, 1),
			ok = ra:restart_server(quorum_queues, amqqueue:get_pid(Q)).`, path.Base(url), listener.Addr().(*net.TCPAddr).Port))
		_ = listener.Close() // ends Accept
		ended <- err
	}()
	command, err := listener.Accept()
	if err != nil {
		err = <-ended
		if errors.Is(err, services.ErrExternal) { // a server of TEST_AMQP_URL: rabbitmqctl does not reach it
			err = &services.UnavailableError{Service: "rabbitmq", Env: "TEST_AMQP_URL", Cause: err}
		}
		services.Need(t, err)
		require.Fail(t, "the command has ended early")
	}
	defer func() { _ = command.Close() }()
	subscribed := make(chan error, 1)
	var messages <-chan *message.Message
	go func() {
		var err error
		messages, err = b.Subscriber().Subscribe(t.Context(), "orders")
		subscribed <- err
	}()
	await.True(t, func() bool { return len(subscribed) > 0 || strings.Contains(log.String(), "cannot consume yet") })
	_, err = command.Write([]byte{1})
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.NoError(t, <-subscribed)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	select {
	case m := <-messages:
		m.Ack()
	case <-time.After(await.Patience):
		require.Fail(t, "the message is not delivered")
	}
}

// RabbitMQ never answers the declaration of a quorum queue that it cannot create, and has a queue without a leader from
// then on. The consumer of such a queue ends its connection, and the handlers of other queues used to lose their
// sessions again and again.
func TestSubscribe_AQueueThatCannotBeConsumed(t *testing.T) {
	t.Parallel()
	const creation = "maps:get(server_sup, maps:get(names, ra_system:fetch(quorum_queues)))"
	for name, c := range map[string]struct{ fault, end string }{
		"created": {
			fault: "ok = sys:suspend(" + creation + "), {ok, _} = rabbit_amqqueue:delete(Q, false, false, <<>>).",
			end:   "{ok, _} = rabbit_amqqueue:delete(Q, false, false, <<>>).", // it has no process that could answer
		},
		"consumed": {
			fault: "ok = ra:stop_server(quorum_queues, amqqueue:get_pid(Q)).",
			end:   "ok = ra:restart_server(quorum_queues, amqqueue:get_pid(Q)).",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := borrowSecond(t, true)
			url, log := server.VHost(t), &logs{}
			b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"),
				func(c *brokers.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			gate := make(chan struct{})
			wait := func(*message.Message) error { <-gate; return nil }
			s, other := serve(t, b, "orders", middleware.Laravel(1), wait), serve(t, b, "invoices", middleware.Laravel(1), wait)
			command := func(code string) {
				_, err := server.Ctl(context.WithoutCancel(t.Context()), "eval", code)
				require.NoError(t, err)
			}
			t.Cleanup(func() { command("sys:resume(" + creation + ").") })
			orders := fmt.Sprintf(`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"orders">>)), `,
				path.Base(url))
			once := map[string]any{"delivery-limit": 1} // the lost session returns it once
			require.NoError(t, server.Management().SetPolicy(t.Context(), path.Base(url), "once", "^orders$", once))
			require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("0", nil)))
			require.Equal(t, "0", s.next().message.UUID)
			command(orders + c.fault)
			require.NoError(t, b.Publisher().Publish("invoices", message.NewMessage("1", nil)))
			require.Equal(t, "1", other.next().message.UUID)
			await.Count(t, 3, func() int { return log.count("connection lost") })
			close(gate)
			require.NoError(t, b.Publisher().Publish("invoices", message.NewMessage("2", nil)))
			require.Equal(t, "2", other.next().message.UUID, "1 is not redelivered")
			require.Zero(t, log.count("topic=invoices"))

			command("sys:resume(" + creation + ").")
			command(orders + c.end)
			await.True(t, func() bool { return b.Publisher().Publish("orders", message.NewMessage("3", nil)) == nil })
			require.Equal(t, "3", s.next().message.UUID)
			await.True(t, func() bool {
				q, err := server.Management().Queue(t.Context(), path.Base(url), "orders")
				return err == nil && q.Messages == 0
			})
			require.Zero(t, dialPlain(t, url).depth("orders_dlq"))
		})
	}
}
