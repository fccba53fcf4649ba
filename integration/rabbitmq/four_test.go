package rabbitmq_test

import (
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

// The suite for brokers on RabbitMQ 4, where the others run on 3.10. It refuses transient queues that are not exclusive and
// QoS for a whole connection, and counts deliveries in another way.
func TestConformance_RabbitMQ4(t *testing.T) { conforms(t, services.SharedRabbitMQ4(t), nil) }
