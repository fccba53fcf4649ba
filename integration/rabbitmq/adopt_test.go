package rabbitmq_test

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Queues that are missing next to adopted ones are declared with the type of those that exist.
func TestTopology_AdoptedQueuesDecideTheType(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		queue  string
		args   amqp.Table
		params []string
		want   string
	}{
		"classic next to a classic queue":      {"orders", nil, nil, "classic"},
		"classic next to classic dead letters": {"orders_dlq", nil, nil, "classic"},
		"classic next to an explicitly classic one": {
			"orders",
			amqp.Table{"x-queue-type": "classic", "x-max-priority": int32(5)},
			nil, "classic",
		},
		"quorum next to a quorum queue": {"orders", amqp.Table{"x-queue-type": "quorum"}, nil, "quorum"},
		"the URL's type, if it sets one": {
			"orders", nil,
			[]string{"queue-type", "quorum", "retry-queue-type", "quorum"},
			"quorum",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			_, err := p.ch.QueueDeclare(tc.queue, true, false, false, false, tc.args)
			require.NoError(t, err)
			b := openBroker(t, url, naming(brokers.Laravel()), params(append([]string{"declare", "adopt"}, tc.params...)...))
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(50 * time.Millisecond)},
				fails)
			p.send("", "orders", amqp.Publishing{MessageId: "m"})
			s.schedule(0, 50*time.Millisecond)
			require.Equal(t, "m", p.next("orders_dlq").MessageId)
			there := queues(t, url)
			require.Len(t, there, 3)
			for name, q := range there {
				if name != tc.queue {
					require.Equal(t, tc.want, q.Type, name)
				}
			}

			// A queue that is deleted later is recreated with the same type.
			if tc.queue == "orders_dlq" || tc.want == "quorum" { // RabbitMQ 3 responds slowly for a recreated quorum queue
				return
			}
			_, err = p.ch.QueueDelete("orders_dlq", false, false, false)
			require.NoError(t, err)
			p.send("", "orders", amqp.Publishing{MessageId: "n"})
			s.schedule(0, 50*time.Millisecond)
			await.True(t, func() bool { return queues(t, url)["orders_dlq"].Type == tc.want })
			require.Equal(t, "n", p.next("orders_dlq").MessageId)
		})
	}
}

// A missing delay queue does not return messages through an adopted exchange that would also deliver them to other
// queues, and a dead letter exchange that is not a fanout is bound with the keys of its messages.
func TestTopology_AdoptedExchangesDecideTheRoute(t *testing.T) {
	t.Parallel()
	t.Run("fanout", func(t *testing.T) {
		t.Parallel()
		url := services.SharedRabbitMQ(t).VHost(t)
		p := dialPlain(t, url)
		require.NoError(t, p.ch.ExchangeDeclare("workers", "fanout", true, false, false, false, nil))
		_, err := p.ch.QueueDeclare("audit", true, false, false, false, nil)
		require.NoError(t, err)
		require.NoError(t, p.ch.QueueBind("audit", "", "workers", false, nil))
		b := openBroker(t, url, naming(brokers.TTLCycle("workers")), params("declare", "adopt", "retry-ttl", "100ms"))
		s := serve(t, b, "dre", middleware.TTLCycle(1, 100*time.Millisecond), fails)
		p.send("workers", "dre", amqp.Publishing{MessageId: "m"})
		s.schedule(0, 100*time.Millisecond)
		require.Equal(t, "m", p.next("dre.limbu").MessageId)
		require.Equal(t, 1, p.depth("audit"), "no copy of the retry")
	})
	for _, kind := range []string{"direct", "topic"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			require.NoError(t, p.ch.ExchangeDeclare("easyweek.invoice.failed", kind, true, false, false, false, nil))
			b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("invoice"), params("declare", "adopt"))
			s := serve(t, b, "invoice.paid", middleware.ServiceBus(1), fails)
			s.stop() // RabbitMQ gives up messages only while no service reads
			for _, way := range [][2]string{{"", "easyweek.invoice"}, {"easyweek.bus", "invoice.paid"}} {
				p.send(way[0], way[1], amqp.Publishing{MessageId: way[1]})
				await.True(t, func() bool {
					d, ok, err := p.ch.Get("easyweek.invoice", false)
					require.NoError(t, err)
					return ok && d.Reject(false) == nil
				})
				require.Equal(t, way[1], p.next("easyweek.invoice.failed").MessageId)
			}
		})
	}
}

// A start that fails midway because of the user's permissions leaves no queues or exchanges behind.
func TestTopology_RefusedMidwayLeavesNothing(t *testing.T) {
	t.Parallel()
	for server, of := range map[string]func(testing.TB) *services.Rabbit{
		"3": services.SharedRabbitMQ, "4": services.SharedRabbitMQ4,
	} {
		for name, tc := range map[string]struct {
			naming     brokers.NameScheme
			permission map[string]string // missing permissions allow everything
			want       string
		}{
			"dead letters": {brokers.Laravel(), map[string]string{"configure": "^orders(_retry)?$"}, `queue "orders_dlq"`},
			"a delay": {
				brokers.DefaultNames(),
				map[string]string{"configure": `^(redrive|orders|orders_retry\.1000)$`},
				`queue "orders_retry.2000"`,
			},
			"an exchange": {
				brokers.ServiceBus("easyweek"),
				map[string]string{"configure": `^easyweek\.(bus|invoice)$`},
				`"easyweek.invoice.`,
			},
			"to bind": {
				brokers.DefaultNames(),
				map[string]string{"read": "^orders.*"},
				`bind "orders" to exchange "redrive"`,
			},
			"exactly the necessary permissions": {brokers.Laravel(), map[string]string{
				"write": "^(amq.default|orders|orders_retry)$", "read": "^orders(_retry)?$", "configure": "^orders",
			}, ""},
		} {
			t.Run(name+" on RabbitMQ "+server, func(t *testing.T) {
				t.Parallel()
				rabbit := of(t)
				all := rabbit.VHost(t)
				for _, declare := range []string{"all", "adopt"} {
					b, err := brokers.OpenConfig(t.Context(), brokers.Config{
						URL: restricted(t, rabbit, all, tc.permission), Naming: tc.naming,
						Group:  map[string]string{"an exchange": "invoice"}[name],
						Params: brokers.Params{"declare": declare}, Delays: []time.Duration{time.Second, 2 * time.Second},
					})
					require.NoError(t, err)
					_, err = b.Subscriber().Subscribe(t.Context(), "orders")
					require.NoError(t, b.Close())
					if tc.want == "" {
						require.NoError(t, err, "everything permitted is declared")
						continue
					}
					require.ErrorContains(t, err, "ACCESS_REFUSED")
					require.ErrorContains(t, err, tc.want)
					require.Empty(t, onServer(t, rabbit, all, "queues"))
					for _, exchange := range onServer(t, rabbit, all, "exchanges") {
						if !strings.HasPrefix(exchange, "amq.") {
							require.Contains(t, []string{"", "redrive", "easyweek.bus"}, exchange, "open declares the exchange")
						}
					}
				}
			})
		}
	}
}

// restricted creates a user with these permissions in the virtual host of rawURL and returns the URL with it.
func restricted(t *testing.T, rabbit *services.Rabbit, rawURL string, permission map[string]string) string {
	t.Helper()
	vhost := vhostOf(t, rawURL)
	user := vhost + "-user"
	management := rabbit.Management()
	require.NoError(t, management.Do(t.Context(), http.MethodPut, map[string]string{"password": "secret", "tags": ""}, nil,
		"users", user))
	t.Cleanup(func() { _ = management.Do(t.Context(), http.MethodDelete, nil, nil, "users", user) })
	all := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
	maps.Copy(all, permission)
	require.NoError(t, management.Do(t.Context(), http.MethodPut, all, nil, "permissions", vhost, user))
	u, err := url.Parse(rawURL)
	require.NoError(t, err)
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

// onServer lists the queues or exchanges of the virtual host.
func onServer(t *testing.T, rabbit *services.Rabbit, rawURL, what string) (names []string) {
	t.Helper()
	var list []struct{ Name string }
	require.NoError(t, rabbit.Management().Do(t.Context(), http.MethodGet, nil, &list, what, vhostOf(t, rawURL)))
	for _, o := range list {
		names = append(names, o.Name)
	}
	return names
}

// RabbitMQ cuts its explanations off at 255 bytes. With long names they do not tell the existing value, and a consumer
// of a TTL cycle whose time to live was the planned one did not start.
func TestAdopt_LongNames(t *testing.T) {
	t.Parallel()
	const queue, bus = "sgp.fechamento.reabertura.notificacao.dre", "sme.sgp.workers"
	for name, wait := range map[string]int32{"the planned time to live": 5000, "another": 400} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			for exchange, bound := range map[string]string{bus: queue, bus + ".deadletter": queue + ".deadletter"} {
				require.NoError(t, p.ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
				args := amqp.Table{"x-dead-letter-exchange": bus + ".deadletter"}
				if bound != queue {
					args = amqp.Table{"x-dead-letter-exchange": bus, "x-message-ttl": wait}
				}
				_, err := p.ch.QueueDeclare(bound, true, false, false, false, args)
				require.NoError(t, err)
				require.NoError(t, p.ch.QueueBind(bound, queue, exchange, false, nil))
			}
			b := openBroker(t, url, naming(brokers.TTLCycle(bus)), params("declare", "adopt"))
			s := serve(t, b, queue, middleware.TTLCycle(1, 5*time.Second), succeeds)
			p.send(bus, queue, amqp.Publishing{MessageId: "m"})
			require.Equal(t, "m", s.next().message.UUID)
		})
	}
}
