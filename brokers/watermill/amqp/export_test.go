package amqp

import (
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Tolerant wraps a user's marshaler.
func Tolerant(m wamqp.Marshaler, refused func(d *amqp091.Delivery, err error)) wamqp.Marshaler {
	return tolerant{m, refused}
}
