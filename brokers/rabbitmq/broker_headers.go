package rabbitmq

import (
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// remaining returns how much of a delay is left for a message that comes from a wait queue; values written by a
// producer are ignored. The message carries its due time, and how much was left when it left its delay queue: the
// smaller one counts, so that a clock that is wrong by an hour does not add an hour.
func remaining(headers amqp.Table, now time.Time) time.Duration {
	due, ok := integer(headers[envelope.KeyNotBefore])
	if !ok || !waited(headers) {
		return 0
	}
	if due > now.Add(envelope.MaxDelay).UnixMilli() {
		due = now.Add(envelope.MaxDelay).UnixMilli()
	}
	wait := time.UnixMilli(due).Sub(now)
	if rest, ok := integer(headers[keyRest]); ok && rest >= 0 && rest < envelope.MaxDelay.Milliseconds() {
		wait = min(wait, time.Duration(rest)*time.Millisecond)
	}
	return wait
}

// deliveryCount returns how often a quorum queue has delivered the message before.
func deliveryCount(headers amqp.Table) int {
	n, ok := integer(headers["x-delivery-count"])
	if !ok || n < 0 || n > 1<<30 {
		return 0
	}
	return int(n)
}

// waited reports whether RabbitMQ has recorded that the message's time in a queue has ended.
func waited(headers amqp.Table) bool {
	deaths, _ := headers["x-death"].([]any)
	return slices.ContainsFunc(deaths, func(item any) bool {
		death, ok := item.(amqp.Table)
		return ok && death["reason"] == "expired"
	})
}

// countRejections counts the cycles that earlier consumers made by rejecting: without our counter, the number of failed
// attempts is the one that RabbitMQ wrote to x-death. It is only read from messages that none of our services has
// republished, because only there it is RabbitMQ's own.
func countRejections(headers amqp.Table, queue string, metadata message.Metadata) {
	if metadata[envelope.KeyRetryCount] != "" {
		return
	}
	deaths, ok := headers["x-death"].([]any)
	if !ok {
		return
	}
	for _, item := range deaths {
		death, ok := item.(amqp.Table)
		if !ok || death["queue"] != queue || death["reason"] != "rejected" {
			continue
		}
		if n, ok := integer(death["count"]); ok && n > 0 {
			metadata[envelope.KeyRetryCount] = strconv.FormatInt(n, 10)
			return
		}
	}
}

func integer(value any) (int64, bool) {
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true //nolint:gosec // G115: AMQP's have 32 bits at most
	case v.Kind() == reflect.String:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		return n, err == nil
	}
	return 0, false
}
