package brokers_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// The presets have exactly the names that the five systems use.
func TestNameScheme_Presets(t *testing.T) {
	type golden struct {
		Queue, Exchange, Retry, Retry8s, RetryExchange, Delayed10s, Dead, DeadExchange string
	}
	for name, tc := range map[string]struct {
		scheme       brokers.NameScheme
		topic, group string
		want         golden
	}{
		"default with a group": {brokers.NameScheme{}, "orders", "billing", golden{
			Queue: "orders.billing", Retry: "orders.billing_retry", Retry8s: "orders.billing_retry.8000",
			Delayed10s: "orders.billing_retry.10000", Dead: "orders.billing_dlq",
		}},
		"default with the default group": {brokers.DefaultNames(), "orders", brokers.DefaultGroup, golden{
			Queue: "orders", Retry: "orders_retry", Retry8s: "orders_retry.8000", Delayed10s: "orders_retry.10000",
			Dead: "orders_dlq",
		}},
		"A, Laravel": {brokers.Laravel(), "orders", "", golden{
			Queue: "orders", Retry: "orders_retry", Retry8s: "orders_retry.8000", Delayed10s: "orders_retry.10000",
			Dead: "orders_dlq",
		}},
		"B, delayed backoff": {brokers.DelayedBackoff(), "order-reminder", "", golden{
			Queue: "order-reminder", Retry: "order-reminder-delayed-queue", Retry8s: "order-reminder-delayed-queue.8000",
			Delayed10s: "order-reminder-delayed-queue.10000", Dead: "order-reminder-dlq", DeadExchange: "order-reminder-dlx",
		}},
		"C, store only": {brokers.StoreOnly(), "esocial", "validation", golden{
			Queue: "esocial", Retry: "esocial.validation-retry", Retry8s: "esocial.validation-retry.8000",
			Delayed10s: "esocial.validation-retry.10000", Dead: "esocial-dlq",
		}},
		"D, service bus": {brokers.ServiceBus("easyweek"), "invoice.*", "invoice-service", golden{
			Queue: "easyweek.invoice-service", Exchange: "easyweek.bus",
			Retry: "easyweek.invoice-service.retry", Retry8s: "easyweek.invoice-service.retry.8000",
			RetryExchange: "easyweek.invoice-service", Delayed10s: "easyweek.invoice-service.retry.10000",
			Dead: "easyweek.invoice-service.failed", DeadExchange: "easyweek.invoice-service.failed",
		}},
		"E, TTL cycle": {brokers.TTLCycle("sme.sgp.workers"), "sgp.fechamento.reabertura.notificacao.dre", "", golden{
			Queue: "sgp.fechamento.reabertura.notificacao.dre", Exchange: "sme.sgp.workers",
			Retry:         "sgp.fechamento.reabertura.notificacao.dre.deadletter",
			Retry8s:       "sgp.fechamento.reabertura.notificacao.dre.deadletter.8000",
			RetryExchange: "sme.sgp.workers.deadletter",
			Delayed10s:    "sgp.fechamento.reabertura.notificacao.dre.deadletter.10000",
			Dead:          "sgp.fechamento.reabertura.notificacao.dre.limbu",
		}},
		"E with its own spelling": {brokers.NameScheme{Preset: "ttl-cycle", Dead: "{queue}.limbu"}, "dre", "", golden{
			Queue: "dre", Retry: "dre.deadletter", Retry8s: "dre.deadletter.8000", Delayed10s: "dre.deadletter.10000",
			Dead: "dre.limbu",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, tc.scheme.Validate())
			n := tc.scheme.For(tc.topic, tc.group)
			require.Equal(t, tc.want, golden{
				Queue: n.Queue, Exchange: n.Exchange, Retry: n.Retry(0), Retry8s: n.Retry(8 * time.Second),
				RetryExchange: n.RetryExchange,
				Delayed10s:    n.Delayed(10 * time.Second), Dead: n.Dead, DeadExchange: n.DeadExchange,
			})
		})
	}
}

func TestNameScheme_ForQueueKeepsAKnownQueue(t *testing.T) {
	n := brokers.ServiceBus("easyweek").ForQueue("invoice.*", "easyweek.billing")
	require.Equal(t, "easyweek.billing", n.Queue)
	require.Equal(t, "easyweek.billing.failed", n.Dead)
	require.Equal(t, "easyweek.billing.retry.250", n.Retry(250*time.Millisecond))
}

func TestNameScheme_Validate(t *testing.T) {
	for name, tc := range map[string]struct {
		scheme brokers.NameScheme
		want   string
	}{
		"unknown preset": {
			brokers.NameScheme{Preset: "symfony"},
			`unknown preset "symfony": known are default, delayed-backoff, laravel,`,
		},
		"unknown variable": {
			brokers.NameScheme{Dead: "{topics}_dlq"},
			`dead "{topics}_dlq": unknown variable {topics}: known here are {topic}, {group}, {project}, {queue}, {exchange}`,
		},
		"queue of itself":     {brokers.NameScheme{Queue: "{queue}"}, `queue "{queue}": unknown variable {queue}`},
		"delay in dead":       {brokers.NameScheme{Dead: "{queue}.{delay}"}, `unknown variable {delay}`},
		"unclosed variable":   {brokers.NameScheme{Dead: "{queue"}, `dead "{queue": write a variable as {name} or {.name}`},
		"two separators":      {brokers.NameScheme{Dead: "x{..queue}"}, `write a variable as {name} or {.name}`},
		"nested variable":     {brokers.NameScheme{Dead: "x{{queue}}"}, `write a variable as {name} or {.name}`},
		"stray brace":         {brokers.NameScheme{Dead: "x}"}, `write a variable as {name} or {.name}`},
		"control character":   {brokers.NameScheme{Dead: "x\ny"}, `has a control character`},
		"no project":          {brokers.ServiceBus(""), `exchange "{project}.bus" has {project}, but no project is set`},
		"dead letters return": {brokers.NameScheme{Dead: "{queue}"}, `queue and dead are the same`},
		"retry is dead":       {brokers.NameScheme{Retry: "{queue}_x", Dead: "{queue}_x"}, `retry and dead are the same`},
		"retry is the queue":  {brokers.NameScheme{Retry: "{queue}"}, `queue and retry are the same`},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorContains(t, tc.scheme.Validate(), tc.want)
		})
	}
}

func TestSubscriber_NeedsAGroupWhereTheQueueIsNamedByIt(t *testing.T) {
	c, err := brokers.Config{URL: "mem://?naming=service-bus&project=easyweek"}.Resolve(nil)
	require.NoError(t, err)
	_, err = c.Subscriber(nil)
	require.ErrorContains(t, err,
		"naming service-bus derives the queue's name from the group: give this consumer one with")
	_, err = c.Subscriber(nil, brokers.WithGroup("invoice-service"))
	require.NoError(t, err)
}
