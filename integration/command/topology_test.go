package command_test

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// Missing objects are named by check and created by apply, and a second apply changes nothing.
func TestTopology(t *testing.T) {
	t.Parallel()
	store := services.SharedPostgres(t).Database(t)
	for name, open := range map[string]func(*testing.T) (url, topic string){
		"rabbit": func(t *testing.T) (string, string) {
			t.Helper()
			return services.SharedRabbitMQ(t).VHost(t), "orders"
		},
		"kafka": func(t *testing.T) (string, string) {
			t.Helper()
			k := services.SharedKafka(t)
			return k.URL(), k.Topic(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, topic := open(t)
			config := configOf(store, map[string]string{"main": url}, "main/some_dlq")
			plan := redrive(t, config, "topology", "plan", "main", topic)
			require.Zero(t, plan.code, plan.stderr)
			require.Contains(t, plan.stdout, topic+".billing")

			check := redrive(t, config, "topology", "check", "main", topic)
			require.Equal(t, 4, check.code, check.stderr)
			require.Contains(t, check.stdout, topic+".billing")
			require.Contains(t, check.stderr, "redrive topology apply creates what is missing")

			asked := redrive(t, config, "topology", "apply", "main", topic)
			require.Equal(t, 5, asked.code)
			require.Contains(t, asked.stderr, "add --yes to do it")
			for range 2 {
				apply := redrive(t, config, "topology", "apply", "main", topic, "--yes")
				require.Zero(t, apply.code, apply.stderr)
				require.Equal(t, plan.stdout, apply.stdout)
				check = redrive(t, config, "topology", "check", "main", topic)
				require.Zero(t, check.code, check.stdout+check.stderr)
				require.Empty(t, check.stdout)
			}
			other := redrive(t, config, "topology", "check", "main", topic, "--group", "shipping")
			require.Equal(t, 4, other.code, other.stderr)
			require.Contains(t, other.stdout, topic+".shipping")
			require.NotContains(t, other.stdout, topic+".billing")
		})
	}
}

// An existing queue with other properties is reported, and not changed.
func TestTopology_OtherArguments(t *testing.T) {
	t.Parallel()
	store, rabbit := services.SharedPostgres(t).Database(t), services.SharedRabbitMQ(t).VHost(t)
	declare(t, rabbit, map[string]amqp.Table{"orders.billing": {"x-max-length": int32(10)}})
	config := configOf(store, map[string]string{"main": rabbit}, "main/some_dlq")
	check := redrive(t, config, "topology", "check", "main", "orders")
	require.Equal(t, 4, check.code, check.stderr)
	require.Contains(t, check.stdout, "orders.billing")
	apply := redrive(t, config, "topology", "apply", "main", "orders", "--yes")
	require.Equal(t, 1, apply.code, apply.stdout)
	require.Contains(t, apply.stderr, "orders.billing")
	declare(t, rabbit, map[string]amqp.Table{"orders.billing": {"x-max-length": int32(10)}}) // as it was
}
