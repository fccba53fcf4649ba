package brokers

import (
	"maps"
	"slices"
)

// presets are the schemes that a Config or URL can name.
var presets = map[string]func() NameScheme{
	"default":         DefaultNames,
	"laravel":         Laravel,
	"delayed-backoff": DelayedBackoff,
	"store-only":      StoreOnly,
	"service-bus":     func() NameScheme { return ServiceBus("") },
	"ttl-cycle":       func() NameScheme { return TTLCycle("") },
}

// Presets lists the valid values of NameScheme.Preset, sorted.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// DefaultNames is the scheme for a new system. A consumer's queue is its topic, followed by the group if there is one;
// retries wait in one place per delay, and each consumer has its own dead letters:
//
//	orders.billing   orders.billing_retry.8000   orders.billing_dlq
func DefaultNames() NameScheme {
	return NameScheme{
		Preset: "default",
		Queue:  "{topic}{.group}",
		Retry:  "{queue}_retry{.delay}",
		Dead:   "{queue}_dlq",
	}
}

// Laravel is the flow orders -> orders_retry -> orders_dlq.
func Laravel() NameScheme {
	return NameScheme{
		Preset: "laravel",
		Queue:  "{topic}",
		Retry:  "{queue}_retry{.delay}",
		Dead:   "{queue}_dlq",
	}
}

// DelayedBackoff has one delayed queue per event type, such as order-reminder-delayed-queue, in which messages wait for
// their first delivery and for their retries, and a dead letter exchange per queue.
func DelayedBackoff() NameScheme {
	return NameScheme{
		Preset:       "delayed-backoff",
		Queue:        "{topic}",
		Retry:        "{topic}-delayed-queue{.delay}",
		Delayed:      "{topic}-delayed-queue{.delay}",
		Dead:         "{queue}-dlq",
		DeadExchange: "{queue}-dlx",
	}
}

// StoreOnly is for systems that keep dead letters in a table. If a dead letter topic is used as well, it is
// {topic}-dlq.
func StoreOnly() NameScheme {
	return NameScheme{
		Preset: "store-only",
		Queue:  "{topic}",
		Retry:  "{topic}{.group}-retry{.delay}",
		Dead:   "{topic}-dlq",
	}
}

// ServiceBus is one topic exchange {project}.bus for all events and one queue {project}.{group} per service, which is
// the group. The delayed exchange has the name of the queue, and dead letters go to the queue's .failed:
//
//	easyweek.bus   easyweek.invoice-service   easyweek.invoice-service.failed
func ServiceBus(project string) NameScheme {
	return NameScheme{
		Preset:        "service-bus",
		Project:       project,
		Exchange:      "{project}.bus",
		Queue:         "{project}.{group}",
		Retry:         "{queue}.retry{.delay}",
		RetryExchange: "{queue}",
		Dead:          "{queue}.failed",
		DeadExchange:  "{queue}.failed",
		Patterns:      true,
	}
}

// TTLCycle is the cycle in which a rejected message waits in the queue's .deadletter and returns when its time to live
// ends; in this system .deadletter is the wait for a retry, and .limbu, as it spells it, is final. exchange is the main
// exchange, such as sme.sgp.workers; empty means the default exchange.
func TTLCycle(exchange string) NameScheme {
	return NameScheme{
		Preset:        "ttl-cycle",
		Exchange:      exchange,
		Queue:         "{topic}",
		Retry:         "{queue}.deadletter{.delay}",
		RetryExchange: "{exchange}.deadletter",
		Dead:          "{queue}.limbu",
	}
}
