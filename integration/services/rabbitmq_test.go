package services_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) { services.Main(m) }

func dialRabbit(t *testing.T, u string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(u)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	return ch
}

func publishRabbit(t *testing.T, ch *amqp.Channel, queue, body string) {
	t.Helper()
	require.NoError(t, ch.Confirm(false))
	confirm, err := ch.PublishWithDeferredConfirmWithContext(t.Context(), "", queue, true, false,
		amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
	require.NoError(t, err)
	acked, err := confirm.WaitContext(t.Context())
	require.NoError(t, err)
	require.True(t, acked)
}

func getRabbit(t *testing.T, ch *amqp.Channel, queue string) string {
	t.Helper()
	var body string
	await.True(t, func() bool {
		d, ok, err := ch.Get(queue, true)
		body = string(d.Body)
		return err == nil && ok
	})
	return body
}

func TestSharedRabbitMQ_VHost(t *testing.T) {
	r := services.SharedRabbitMQ(t)
	require.Same(t, r, services.SharedRabbitMQ(t))
	first, second := r.VHost(t), r.VHost(t)

	ch := dialRabbit(t, first)
	_, err := ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	publishRabbit(t, ch, "orders", "hello")
	require.Equal(t, "hello", getRabbit(t, ch, "orders"))

	_, err = dialRabbit(t, second).QueueDeclarePassive("orders", true, false, false, false, nil)
	require.ErrorContains(t, err, "NOT_FOUND", "virtual hosts do not share queues")
}

func TestRabbitMQ_KilledKeepsDurableMessages(t *testing.T) {
	r := services.RabbitMQ(t, services.RabbitConfig{
		ConsumerTimeout:          time.Minute,
		DeadLetterConfirmTimeout: 2 * time.Second,
	})
	for setting, want := range map[string]string{
		"consumer_timeout": "{ok,60000}",
		"dead_letter_worker_publisher_confirm_timeout": "{ok,2000}",
	} {
		got, err := r.Ctl(t.Context(), "eval", "application:get_env(rabbit, "+setting+").")
		require.NoError(t, err)
		require.Equal(t, want, strings.TrimSpace(got), setting)
	}
	ch := dialRabbit(t, r.URL)
	for _, kind := range []string{"classic", "quorum"} {
		_, err := ch.QueueDeclare(kind, true, false, false, false, amqp.Table{"x-queue-type": kind})
		require.NoError(t, err)
		publishRabbit(t, ch, kind, "kept in "+kind)
	}

	require.NoError(t, r.Settle(t.Context()))
	require.NoError(t, r.Kill())
	_, err := amqp.Dial(r.URL)
	require.Error(t, err)
	require.NoError(t, r.Start(t.Context()))

	ch = dialRabbit(t, r.URL)
	for _, kind := range []string{"classic", "quorum"} {
		require.Equal(t, "kept in "+kind, getRabbit(t, ch, kind))
	}
}

func TestManagement(t *testing.T) {
	r := services.SharedRabbitMQ(t)
	if r.ManagementURL == "" {
		t.Skip("TEST_AMQP_MANAGEMENT_URL is not set")
	}
	u, err := url.Parse(r.VHost(t))
	require.NoError(t, err)
	vhost := strings.TrimPrefix(u.Path, "/")

	conn, err := amqp.Dial(u.String())
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare("a/b c", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)

	m := r.Management()
	require.NoError(t, m.SetPolicy(t.Context(), vhost, "limit", ".*", map[string]any{"delivery-limit": 3}))
	queue, err := m.Queue(t.Context(), vhost, "a/b c")
	require.NoError(t, err)
	require.Equal(t, "quorum", queue.Type)
}

func TestRabbitMQOf_SurvivesTheLossOfALeader(t *testing.T) {
	c := services.RabbitMQOf(t, services.RabbitConfig{}, 3)
	ch := dialRabbit(t, c.Nodes[0].URL)
	_, err := ch.QueueDeclare("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	publishRabbit(t, ch, "kept", "kept")

	leader := c.Leader(t, "kept")
	require.NoError(t, leader.Kill())
	for _, r := range c.Nodes {
		if r == leader {
			continue
		}
		await.True(t, func() bool {
			conn, err := amqp.Dial(r.URL)
			if err != nil {
				return false
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err != nil {
				return false
			}
			q, err := ch.QueueDeclarePassive("kept", true, false, false, false, nil)
			return err == nil && q.Messages == 1
		}, "the message survives without the leader")
	}
	require.NoError(t, leader.Start(t.Context()))
}
