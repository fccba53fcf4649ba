package rabbitmq_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/services"
)

// Without the plugin, opening fails with a sentence that says so and what to do, and the broker hardly notices.
func TestPlugin_Missing(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	_, err := brokers.Open(t.Context(), url+"?transport=plugin&naming=service-bus&project=easyweek&group=invoice-service")
	require.Error(t, err)
	for _, text := range []string{
		"x-delayed-message", "rabbitmq-plugins enable rabbitmq_delayed_message_exchange", "4.3", "x-transport=ttl",
	} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "guest:guest")

	b, err := brokers.Open(t.Context(), url+"?transport=ttl&naming=service-bus&project=easyweek&group=invoice-service")
	require.NoError(t, err)
	require.NoError(t, b.Close())
}
