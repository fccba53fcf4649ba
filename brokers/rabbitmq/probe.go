package rabbitmq

import (
	"context"
	"log/slog"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// ping is the cheapest question that RabbitMQ answers.
func ping(ch *amqp.Channel) error { return ch.Qos(1, 0, false) }

// probePlugin finds out whether the broker can make x-delayed-message exchanges, on a separate connection: RabbitMQ
// ends the connection that asks for an exchange type it does not know.
func probePlugin(ctx context.Context, cfg brokers.Config) error {
	l := newLink(cfg.URL, cfg.Name+" (probe)", slog.New(slog.DiscardHandler)) // the answer is the caller's
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
