package rabbitmq

import (
	"encoding/json"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// What a program has planned is no harm. It used to be reported, with the value that it has as the one to want, and an
// argument that cannot be compared ended the process.
func TestHarms_AsPlanned(t *testing.T) {
	planned := Queue{Name: "orders", Args: amqp.Table{"x-max-length": 1000, "x-list": []any{int32(1)}}}
	seen := amqp.Table{"x-max-length": int64(1000), "x-list": []any{int32(1)}}
	require.Empty(t, harms(planned, seen, queuePolicy{}))
	require.Empty(t, harms(planned, seen, queuePolicy{Definition: map[string]any{"max-length": json.Number("1000")}}))

	few := harms(planned, seen, queuePolicy{Name: "few", Definition: map[string]any{"max-length": json.Number("5")}})
	require.Len(t, few, 1)
	require.ErrorContains(t, few[0], `policy "few" sets max-length=5`)
	require.ErrorContains(t, few[0], "want 1000")
	require.Len(t, harms(Queue{Name: "orders"}, seen, queuePolicy{}), 1, "an adopted queue has no plan")
}

// A queue whose arguments the user may not see may dead-letter what a policy lets expire. Those that were planned were
// taken to be the queue's, and the warning said that messages are lost.
func TestHarms_UnseenArguments(t *testing.T) {
	d, q := designOf(t, brokers.Config{}), Queue{Name: "orders_dlq", Args: amqp.Table{"x-queue-type": quorum}}
	d.refused.Store(q.Name, time.Now())
	args, err := d.look(t.Context(), nil, q)
	require.True(t, isRefused(err))
	short := queuePolicy{Name: "short", Definition: map[string]any{"message-ttl": json.Number("1000")}}
	require.Empty(t, harms(Queue{Name: q.Name}, args, short))
}
