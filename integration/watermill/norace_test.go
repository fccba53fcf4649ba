//go:build !race

package watermill_test

import (
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

// undetected are cases in which the race detector would report a race in another project: watermill-amqp v2.1.3 reads
// its connection without a lock while it reconnects. `make plain` runs them.
var undetected = map[string]func(t *testing.T) faulty{
	"RabbitMQ": func(t *testing.T) faulty {
		t.Helper()
		server := services.RabbitMQ(t, services.RabbitConfig{})
		url, p := behind(t, server.URL)
		return faulty{onAMQP(url).url, p, server}
	},
}
