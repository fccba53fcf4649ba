package examples_test

import (
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// System D's bus on a real RabbitMQ has the same transcript as on the memory broker, and a plain AMQP client finds the
// dead letters in the service's .failed queue.
func TestBus_OnRabbitMQ(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	inMemory, onRabbit := run(t, "bus", urls{broker: "mem://"}), run(t, "bus", urls{broker: url})
	require.Zero(t, inMemory.code, inMemory.stdout+inMemory.stderr)
	require.Zero(t, onRabbit.code, onRabbit.stdout+onRabbit.stderr)
	require.Equal(t, attempts(inMemory.stdout), attempts(onRabbit.stdout))
	require.Regexp(t, `T= *([6-9]|\d\d+)\.\d s  invoice-service  invoice.created INV-2  last `, onRabbit.stdout,
		"after 1 s and 5 s, never earlier")
	require.Regexp(t, `invoice-service\s+6\s+2\s+1\s+1\s+2\s+7`, onRabbit.stdout)
	require.Regexp(t, `mailer\s+7\s+5\s+0\s+0\s+2\s+7`, onRabbit.stdout)

	conn, err := amqp.Dial(url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	channel, err := conn.Channel()
	require.NoError(t, err)
	for _, queue := range []string{"easyweek.invoice-service", "easyweek.mailer", "easyweek.mailer.failed"} {
		state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(t, err)
		require.Zero(t, state.Messages, queue)
	}
	dead, ok, err := channel.Get("easyweek.invoice-service.failed", true)
	require.NoError(t, err)
	require.True(t, ok)
	require.Contains(t, string(dead.Body), "INV-2")
	require.EqualValues(t, 3, dead.Headers["x-retry-count"])
	require.Equal(t, "tax office: dial tcp: connection refused", dead.Headers["consumer_error"])
	require.NotContains(t, dead.Headers, "x-delay")
}

// attempts returns the sorted lines of a transcript without their times.
func attempts(transcript string) (lines []string) {
	for line := range strings.Lines(transcript) {
		if _, rest, ok := strings.Cut(line, " s  "); ok && strings.HasPrefix(line, "T=") {
			lines = append(lines, rest)
		}
	}
	slices.Sort(lines)
	return lines
}
