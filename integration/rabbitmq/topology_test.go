package rabbitmq_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// queues lists the queues of the virtual host by name.
func queues(t *testing.T, rawURL string) map[string]services.Queue {
	t.Helper()
	list, err := services.SharedRabbitMQ(t).Management().Queues(t.Context(), vhostOf(t, rawURL))
	require.NoError(t, err)
	byName := map[string]services.Queue{}
	for _, q := range list {
		byName[q.Name] = q
	}
	return byName
}

// Apply declares exactly the objects of Plan, with the arguments that keep messages safe, and Check then finds no
// difference.
func TestTopology_PlanApplyCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		naming brokers.NameScheme
		group  string
		params []string
		topic  string
	}{
		"default":         {naming: brokers.DefaultNames(), group: "billing", topic: "orders"},
		"laravel":         {naming: brokers.Laravel(), topic: "orders", params: []string{"grid", "false"}},
		"delayed-backoff": {naming: brokers.DelayedBackoff(), topic: "order-reminder"},
		"service-bus":     {naming: brokers.ServiceBus("easyweek"), group: "invoice-service", topic: "invoice.*"},
		"ttl-cycle":       {naming: brokers.TTLCycle("sme.sgp.workers"), topic: "sgp.fechamento"},
		"classic": {
			naming: brokers.DefaultNames(), topic: "orders",
			params: []string{"queue-type", "classic", "retry-queue-type", "classic"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			b := openBroker(t, url, naming(tc.naming), group(tc.group), params(tc.params...), delays(time.Second, 5*time.Second))
			plan := b.Plan(tc.topic)

			findings, err := b.Check(t.Context(), plan)
			require.NoError(t, err)
			missing := 0
			for _, f := range findings {
				require.True(t, f.Missing, f)
				require.Contains(t, f.String(), strconv.Quote(f.Name)+" is missing")
				missing++
			}
			require.GreaterOrEqual(t, missing, len(plan.Queues), "all queues are missing")
			require.Empty(t, queues(t, url), "plan and check declare nothing")

			require.NoError(t, b.Apply(t.Context(), plan))
			findings, err = b.Check(t.Context(), plan)
			require.NoError(t, err)
			require.Empty(t, findings)
			require.NoError(t, b.Apply(t.Context(), plan), "applying again changes nothing")

			there := queues(t, url)
			require.Len(t, there, len(plan.Queues))
			for _, q := range plan.Queues {
				live, ok := there[q.Name]
				require.True(t, ok, q.Name)
				require.Len(t, live.Arguments, len(q.Args), q.Name)
				require.Contains(t, plan.String(), q.Name)
				require.True(t, live.Durable, "D6")
				require.NotContains(t, live.Arguments, "x-expires", "a queue that expires loses its messages")
				if live.Type == "quorum" && live.Arguments["x-dead-letter-exchange"] != nil {
					require.Equal(t, "at-least-once", live.Arguments["x-dead-letter-strategy"], q.Name)
					require.Equal(t, "reject-publish", live.Arguments["x-overflow"], q.Name)
				}
				if name != "classic" {
					require.Equal(t, "quorum", live.Type, q.Name)
				}
				if limit, ok := live.Arguments["x-delivery-limit"].(float64); ok {
					require.Positive(t, limit, "3.x drops the message at the first requeue when it is -1")
				}
			}

			// The consumer finds all objects that it needs and declares no others.
			serve(t, b, tc.topic, middleware.Laravel(1), fails)
			require.Len(t, queues(t, url), len(plan.Queues))
		})
	}
}

// Existing queues and exchanges with other arguments cause an error that names the object, the argument, both values
// and the remedies. They stay unchanged, with their messages.
func TestTopology_ForeignArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		queue      string
		args       amqp.Table
		argument   string
		have, want string
	}{
		"plain": {"orders", nil, "x-dead-letter-exchange", "none", `""`},
		"type":  {"orders_dlq", amqp.Table{"x-queue-type": "classic"}, "x-queue-type", "classic", "quorum"},
		"dead letter": {
			"orders",
			amqp.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "theirs"},
			"x-dead-letter-exchange", "theirs", "",
		},
		"missing": {"orders_retry", without(retryArgs(1000), "x-overflow"), "x-overflow", "none", "reject-publish"},
		"delivery limit": {
			"orders_dlq",
			amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(20)},
			"x-delivery-limit", "20", "1000000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			_, err := p.ch.QueueDeclare(tc.queue, true, false, false, false, tc.args)
			require.NoError(t, err)
			require.NoError(t, p.ch.Confirm(false))
			confirm, err := p.ch.PublishWithDeferredConfirm("", tc.queue, true, false,
				amqp.Publishing{Body: []byte("theirs"), DeliveryMode: amqp.Persistent})
			require.NoError(t, err)
			require.True(t, confirm.Wait())

			b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"), delays(time.Second))
			_, err = b.Subscriber().Subscribe(t.Context(), "orders")
			var fault *rabbitmq.ArgumentError
			require.ErrorAs(t, err, &fault)
			require.Equal(t, rabbitmq.ArgumentError{
				Kind: "queue", Name: tc.queue, Argument: tc.argument, Want: fault.Want,
				Have: fault.Have,
			}, *fault)
			require.Equal(t, tc.have, fault.Have)
			if tc.want != "" {
				require.Equal(t, tc.want, fault.Want)
			}
			for _, text := range []string{
				strconv.Quote(tc.queue), tc.argument, tc.have, tc.want, "x-declare=adopt", "policy",
				"another name",
			} {
				require.ErrorContains(t, err, text)
			}

			plan := b.Plan("orders")
			findings, err := b.Check(t.Context(), plan)
			require.NoError(t, err)
			found := false
			for _, f := range findings {
				if f.Name == tc.queue {
					require.Equal(t, fault, f.Fault)
					found = true
				}
			}
			require.True(t, found)
			require.ErrorAs(t, b.Apply(t.Context(), plan), &fault)

			// A refusal does not cost other publishers the connection.
			_, err = p.ch.QueueDeclare("elsewhere", true, false, false, false, nil)
			require.NoError(t, err)
			require.NoError(t, b.Publisher().Publish("elsewhere", newMessage("x")))
			require.LessOrEqual(t, p.depth(tc.queue), 1,
				"the queue is untouched, but a delay queue may have expired its message")
		})
	}
}

func retryArgs(ttl int64) amqp.Table {
	return amqp.Table{
		"x-queue-type": "quorum", "x-message-ttl": ttl, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
}

func without(args amqp.Table, key string) amqp.Table {
	delete(args, key)
	return args
}

// An exchange of a different type is named as well.
func TestTopology_ForeignExchange(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	require.NoError(t, p.ch.ExchangeDeclare("easyweek.bus", "direct", true, false, false, false, nil))
	_, err := brokers.OpenConfig(t.Context(),
		brokers.Config{URL: url, Naming: brokers.ServiceBus("easyweek"), Group: "invoice-service"})
	var fault *rabbitmq.ArgumentError
	require.ErrorAs(t, err, &fault)
	require.Equal(t, rabbitmq.ArgumentError{
		Kind: "exchange", Name: "easyweek.bus", Argument: "type", Want: "topic",
		Have: "direct",
	}, *fault)
}

// Queues of others are consumed as they are, and missing ones are declared.
func TestTopology_Adopt(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), params("declare", "adopt"), delays(100*time.Millisecond))
	// classic, with its own argument
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, amqp.Table{"x-max-priority": int32(5)})
	require.NoError(t, err)
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(100 * time.Millisecond),
	}, fails)
	p.send("", "orders", amqp.Publishing{MessageId: "m"})
	s.schedule(0, 100*time.Millisecond)
	require.Equal(t, "m", p.next("orders_dlq").MessageId)
	there := queues(t, url)
	require.Len(t, there, 3)
	require.Len(t, there["orders"].Arguments, 1, "untouched")
	require.Contains(t, there, "orders_retry")
}

// A queue in which retries would get stuck is refused with the setting that makes it work, and the failed start leaves
// nothing behind.
func TestTopology_ADeadEndIsRefused(t *testing.T) {
	t.Parallel()
	for name, args := range map[string]amqp.Table{
		"plain":                  nil,
		"time to live":           {"x-message-ttl": int32(500)},
		"quorum":                 {"x-queue-type": "quorum"},
		"dead-letters to itself": {"x-dead-letter-exchange": "", "x-message-ttl": int32(500)},
		"expires with its messages": {
			"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-expires": int32(60_000),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			for _, q := range []string{"orders", "orders_retry", "orders_dlq"} {
				_, err := p.ch.QueueDeclare(q, true, false, false, false, map[string]amqp.Table{"orders_retry": args}[q])
				require.NoError(t, err)
			}
			for _, declare := range []string{"adopt", "none"} {
				b := openBroker(t, url, naming(brokers.Laravel()), params("declare", declare))
				_, err := b.Subscriber().Subscribe(t.Context(), "orders")
				var fault *rabbitmq.NoWayBackError
				require.ErrorAs(t, err, &fault, declare)
				require.Equal(t, "orders_retry", fault.Queue)
				require.Len(t, queues(t, url), 3, "nothing was declared")
				findings, err := b.Check(t.Context(), b.Plan("orders"))
				require.NoError(t, err)
				require.Contains(t, findings[0].String()+findings[len(findings)-1].String(),
					`nothing comes back from queue "orders_retry"`)
			}
			seeing := openBroker(t, url, naming(brokers.Laravel()),
				params("declare", "adopt", "management", services.SharedRabbitMQ(t).Management().Address()))
			_, err := seeing.Subscriber().Subscribe(t.Context(), "orders")
			require.ErrorContains(t, err, "nothing comes back")
			require.NotContains(t, err.Error(), "put the management API into the URL", "it is there")
			b := openBroker(t, url+"?declare=adopt&naming=laravel&retry=%7Bqueue%7D_wait") // as the refusal suggests
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(50 * time.Millisecond)},
				fails)
			p.send("", "orders", amqp.Publishing{MessageId: "m"})
			s.schedule(0, 50*time.Millisecond)
			require.Equal(t, "m", p.next("orders_dlq").MessageId)
		})
	}
}

// declare=none declares nothing, and works if everything exists and retries can return to the queue; otherwise it
// refuses to start.
func TestTopology_None(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, url, naming(brokers.Laravel()), params("declare", "none"))
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.ErrorContains(t, err, `queue "orders_retry" does not exist`)
	findings, err := b.Check(t.Context(), b.Plan("orders"))
	require.NoError(t, err)
	require.Len(t, findings, 2, "the error names the mode and the missing queue")

	_, err = p.ch.QueueDeclare("orders_retry", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders", "x-message-ttl": int32(200),
	})
	require.NoError(t, err)
	_, err = p.ch.QueueDeclare("orders_dlq", true, false, false, false, nil)
	require.NoError(t, err)
	s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(500 * time.Millisecond)},
		fails)
	p.send("", "orders", amqp.Publishing{MessageId: "m"})
	s.schedule(0, 500*time.Millisecond)
	require.Equal(t, "m", p.next("orders_dlq").MessageId)
	require.Len(t, queues(t, url), 3)
}

// A retry queue that an earlier version or another policy declared with a time to live does not stop the service: it
// keeps its name and serves the new policy, never early.
func TestTopology_RetryQueueOfAnotherPolicy(t *testing.T) {
	t.Parallel()
	for _, ttl := range []int64{0, 200, 60_000} {
		t.Run(strconv.FormatInt(ttl, 10), func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			_, err := p.ch.QueueDeclare("orders_retry", true, false, false, false, retryArgs(ttl))
			require.NoError(t, err)
			b := openBroker(t, url, naming(brokers.Laravel()))
			s := serve(t, b, "orders", middleware.Config{MaxAttempts: 3, Backoff: middleware.Constant(time.Second)}, fails)
			require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
			s.schedule(0, time.Second, 2*time.Second)
			p.next("orders_dlq")
		})
	}
}

// A producer in another language requests a first-delivery delay with the delayed queue and the message's own
// expiration; its x-delay is the base of the backoff.
func TestTopology_FirstDelayOfAForeignProducer(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.DelayedBackoff()))
	s := serve(t, b, "order-reminder", middleware.DelayedBackoff(2, time.Minute), fails)
	sent := time.Now()
	p.send("", "order-reminder-delayed-queue",
		amqp.Publishing{MessageId: "m", Expiration: "300", Headers: amqp.Table{"x-delay": int32(300)}})
	runs := s.schedule(0, 300*time.Millisecond, 900*time.Millisecond)
	require.GreaterOrEqual(t, runs[0].at.Sub(sent), 300*time.Millisecond)
	require.Equal(t, "300", runs[0].message.Metadata["x-original-delay"])
}

// A changed policy declares new queues and does not change the old ones, and messages in the old ones are delivered
// when they are due.
func TestTopology_ChangedPolicyKeepsOldQueues(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	old := openBroker(t, url, params("grid", "false"), delays(time.Second, 4*time.Second))
	s := serve(t, old, "orders", middleware.ServiceBus(3, 4*time.Second), fails)
	require.NoError(t, old.Publisher().Publish("orders", message.NewMessage("m", []byte("x"))))
	failed := s.next()
	s.stop() // its retry waits now
	require.NoError(t, old.Close())

	changed := openBroker(t, url, params("grid", "false"), delays(200*time.Millisecond, 2*time.Second))
	s = serve(t, changed, "orders", middleware.ServiceBus(3, 200*time.Millisecond), fails)
	retry := s.next()
	require.Equal(t, 2, retry.attempt.Number)
	require.GreaterOrEqual(t, retry.at.Sub(failed.at), 4*time.Second)
	last := s.next()
	require.Equal(t, "orders_retry.200", diedIn(t, last.message), "the new policy")
	for _, delay := range []string{"200", "1000", "2000", "4000"} {
		require.Contains(t, queues(t, url), "orders_retry."+delay)
	}
}

// However many different delays there are, for first deliveries and retries, the number of queues is bounded.
func TestTopology_DelaysNeedABoundedNumberOfQueues(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, delays(3*time.Second))
	pub := b.Publisher()
	origin := envelope.Origin{Topic: "orders", Consumer: "orders"}
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
	before := len(queues(t, url))
	spread(16, 1000, func(i int) {
		delay := time.Minute + time.Duration(i*i*i)*time.Millisecond // a minute to eleven days
		m := newMessage("x")
		send := func() error { return b.Reschedule(t.Context(), origin, m, delay) }
		if i%2 == 1 {
			envelope.SetDelay(m, delay)
			send = func() error { return pub.Publish("orders", m) }
		}
		err := send()
		// a busy RabbitMQ refuses messages for a quorum queue that is being created
		for errors.Is(err, rabbitmq.ErrRefused) {
			err = send()
		}
		if err != nil {
			t.Error(err)
		}
	})
	after := queues(t, url)
	// There is one set of queues for retries, declared when the consumer subscribed, and one for first deliveries to the
	// topic.
	require.LessOrEqual(t, before, 2+22)
	require.LessOrEqual(t, len(after), 2+2*22)
	await.True(t, func() bool {
		waiting := 0
		for _, q := range queues(t, url) {
			waiting += q.Messages
		}
		return waiting == 1000
	})
}

// AMQP cannot list bindings; with the management API, Check finds exactly those that are missing.
func TestTopology_CheckFindsMissingBindings(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	management := services.SharedRabbitMQ(t).Management().Address()
	p := dialPlain(t, url)
	with := func(more ...string) *rabbitmq.Broker {
		return openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("invoice-service"),
			params(append([]string{"grid", "false"}, more...)...))
	}
	b, blind := with("management", management), with()
	require.True(t, b.ChecksBindings())
	require.False(t, blind.ChecksBindings())
	plan := b.Plan("invoice.*")
	require.NoError(t, b.Apply(t.Context(), plan))
	findings, err := b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Empty(t, findings)

	require.NoError(t, p.ch.QueueUnbind("easyweek.invoice-service", "invoice.*", "easyweek.bus", nil))
	require.NoError(t, p.ch.QueueBind("easyweek.invoice-service", "user.#", "easyweek.bus", false, nil), "a foreign binding")
	findings, err = b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Equal(t, []rabbitmq.Finding{{
		Kind: "binding", Name: "easyweek.bus --invoice.*--> easyweek.invoice-service", Missing: true,
	}}, findings)
	require.Contains(t, findings[0].String(), "is missing")
	findings, err = blind.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Empty(t, findings, "so callers must check ChecksBindings")

	require.NoError(t, b.Apply(t.Context(), plan))
	findings, err = b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Empty(t, findings)

	// A missing exchange is reported along with everything that depends on it.
	require.NoError(t, p.ch.ExchangeDelete("easyweek.bus", false, false))
	findings, err = b.Check(t.Context(), plan)
	require.NoError(t, err)
	require.Len(t, findings, 2)
	require.Equal(t, "exchange", findings[0].Kind)
	require.Equal(t, "binding", findings[1].Kind)

	closed := with("management", "http://127.0.0.1:1")
	_, err = closed.Check(t.Context(), plan)
	require.ErrorContains(t, err, "management API", "an incomplete check is not a successful one")
	for _, address := range []string{"localhost:15672", "http://guest:guest@localhost:15672", "ftp://localhost"} {
		_, err := brokers.OpenConfig(t.Context(), brokers.Config{URL: url, Params: brokers.Params{"management": address}})
		require.ErrorContains(t, err, "management", address)
		require.NotContains(t, err.Error(), "guest:guest")
	}
}

// Everything that the first delayed publication would declare can be declared beforehand.
func TestTopology_PlanDelayed(t *testing.T) {
	t.Parallel()
	for name, scheme := range map[string]brokers.NameScheme{
		"exchange": brokers.DefaultNames(),
		"queue":    brokers.Laravel(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			b := openBroker(t, url, naming(scheme), params("grid", "false"), delays(200*time.Millisecond))
			s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil })
			plan := b.PlanDelayed("orders")
			require.NotEmpty(t, plan.Queues)
			require.NoError(t, b.Apply(t.Context(), plan))
			before := queues(t, url)

			// A producer that may not declare.
			producer := openBroker(t, url, naming(scheme), params("grid", "false", "declare", "none"),
				delays(200*time.Millisecond))
			m := newMessage("x")
			m.Metadata["x-delay"] = "200"
			published := time.Now()
			require.NoError(t, producer.Publisher().Publish("orders", m))
			require.GreaterOrEqual(t, s.next().at.Sub(published), 200*time.Millisecond)
			require.Len(t, queues(t, url), len(before))
		})
	}
}

// A policy on our queues that loses messages is found: RabbitMQ applies it to existing queues and reports it nowhere.
func TestTopology_CheckFindsPoliciesThatLoseMessages(t *testing.T) {
	t.Parallel()
	server := services.SharedRabbitMQ(t)
	url := server.VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("management", server.Management().Address()),
		delays(time.Second, 2*time.Second))
	plan := b.Plan("orders")
	require.NoError(t, b.Apply(t.Context(), plan))
	set := func(name, pattern string, definition map[string]any) {
		require.NoError(t, server.Management().SetPolicy(t.Context(), vhostOf(t, url), name, pattern, definition))
	}
	texts := func() (list []string) {
		findings, err := b.Check(t.Context(), plan)
		require.NoError(t, err)
		for _, f := range findings {
			list = append(list, f.String())
		}
		return list
	}
	set("harmless", "^orders$", map[string]any{"delivery-limit": 2_000_000, "dead-letter-exchange": "elsewhere"})
	require.Empty(t, texts())
	set("temporary", "^orders_retry", map[string]any{"expires": 3_600_000, "max-length": 2})
	await.True(t, func() bool { return len(texts()) == 2 })
	require.Contains(t, texts()[0], `queue "orders_retry": policy "temporary" sets expires=3600000`)
	adopting := openBroker(t, url, naming(brokers.Laravel()),
		params("management", server.Management().Address(), "declare", "none"))
	findings, err := adopting.Check(t.Context(), adopting.Plan("orders"))
	require.NoError(t, err)
	require.Len(t, findings, 2, "also on queues that must exist: %v", findings)
	set("temporary", "^orders_dlq", map[string]any{"message-ttl": 1000, "delivery-limit": 3})
	await.True(t, func() bool { // RabbitMQ removes a policy from some queues after applying it to others
		found := texts()
		return len(found) == 2 && strings.Contains(strings.Join(found, "\n"),
			`queue "orders_dlq": policy "temporary" sets message-ttl=1000`)
	})
}

// Check names every argument of an existing queue that loses messages, and not only the first that differs, also where
// queues are used as they are. An argument with which nothing is lost is not named.
func TestTopology_CheckNamesAllArgumentsThatLoseMessages(t *testing.T) {
	t.Parallel()
	harmful := amqp.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int64(1), "x-expires": int64(3_600_000), "x-message-ttl": int64(60_000),
		"x-max-length": int64(1000), "x-max-length-bytes": int64(1 << 30),
	}
	retries := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"}
	for _, queue := range []string{"orders", "orders_dlq"} {
		t.Run(queue, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			for name, args := range map[string]amqp.Table{"orders": retries, "orders_retry": retries, "orders_dlq": nil, queue: harmful} {
				_, err := p.ch.QueueDeclare(name, true, false, false, false, args)
				require.NoError(t, err)
			}
			for _, declare := range []string{"all", "adopt", "none"} {
				b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "declare", declare))
				for plan, p := range map[string]rabbitmq.Plan{"ours": b.Plan("orders"), "a program's": {Adopted: []string{queue}}} {
					findings, err := b.Check(t.Context(), p)
					require.NoError(t, err)
					var named []string
					for _, f := range findings {
						if text := f.String(); strings.Contains(text, "can lose messages") {
							require.Equal(t, queue, f.Name)
							_, text, _ = strings.Cut(text, "declared with ")
							argument, _, _ := strings.Cut(text, ",")
							named = append(named, argument)
						}
					}
					require.Equal(t, []string{
						"x-delivery-limit=1", "x-expires=3600000", "x-max-length=1000", "x-max-length-bytes=1073741824",
						"x-message-ttl=60000",
					}, named, "declare=%s, plan %s", declare, plan)
				}
			}
		})
	}
}

// A queue dead-letters what a policy lets expire, but the user may not see its arguments: the check said that messages
// are lost.
func TestTopology_APolicyOnAQueueWithUnseenArguments(t *testing.T) {
	t.Parallel()
	rabbit := services.SharedRabbitMQ(t)
	address := rabbit.VHost(t)
	p := dialPlain(t, address)
	for queue, args := range map[string]amqp.Table{
		"orders": without(retryArgs(0), "x-message-ttl"), "orders_dlq": {"x-dead-letter-exchange": "archive"},
	} {
		_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
		require.NoError(t, err)
	}
	management, vhost := rabbit.Management(), vhostOf(t, address)
	require.NoError(t, management.SetPolicy(t.Context(), vhost, "short", "^orders", map[string]any{"message-ttl": 3_600_000}))
	user := restricted(t, rabbit, address, map[string]string{"configure": "^$"})
	require.NoError(t, management.Do(t.Context(), http.MethodPut,
		map[string]string{"password": "secret", "tags": "management"}, nil, "users", vhost+"-user"))
	b := openBroker(t, user, params("declare", "none", "management", management.Address()))
	for _, queue := range []string{"orders", "orders_dlq"} {
		await.True(t, func() bool {
			var shown struct{ Policy string }
			require.NoError(t, management.Do(t.Context(), http.MethodGet, nil, &shown, "queues", vhost, queue))
			return shown.Policy == "short"
		})
	}
	for range 2 {
		findings, err := b.Check(t.Context(), rabbitmq.Plan{Adopted: []string{"orders", "orders_dlq"}})
		require.NoError(t, err)
		require.Empty(t, findings)
	}
}
