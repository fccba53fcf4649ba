package rabbitmq

import (
	"context"
	"log/slog"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// ping is RabbitMQ's cheapest request.
func ping(ch *amqp.Channel) error { return ch.Qos(1, 0, false) }

// probePlugin checks whether the broker supports x-delayed-message exchanges, on a separate connection: RabbitMQ ends a
// connection that declares an exchange of an unknown type.
func probePlugin(ctx context.Context, cfg brokers.Config) error {
	l := newConnection(cfg.URL, cfg.Name+" (probe)", slog.New(slog.DiscardHandler)) // the caller reports the result
	defer l.close()
	d := &declarer{link: l}
	probe := delayedExchange("redrive.probe")
	err := d.do(ctx, func(ch *amqp.Channel) error {
		// auto-delete, and deleted below: it must not stay
		return ch.ExchangeDeclare(probe.Name, probe.Kind, false, true, false, false, probe.Args)
	})
	if err != nil {
		return pluginHint(probe, err)
	}
	return d.do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(probe.Name, false, false) })
}
