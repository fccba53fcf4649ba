package rabbitmq_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

var _ redrive.BatchRedriver = (*rabbitmq.Broker)(nil)

// A redriven batch has a result for each message: those that cannot be sent get an error, and do not delay others.
func TestRescheduleAll_HasAResultForEach(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, params("grid", "false", "max-message", "1KiB"), group("billing"))
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))

	const n = 3000 // more than the window of one channel
	origins, messages := make([]envelope.Origin, n), make([]*message.Message, n)
	for i := range n {
		origins[i] = envelope.Origin{
			Broker: "amqp", Topic: "orders", Consumer: "orders.billing", Exchange: "redrive",
			RoutingKey: "orders",
		}
		messages[i] = message.NewMessage(strconv.Itoa(i), []byte("x"))
	}
	origins[7] = envelope.Origin{Topic: "orders", Consumer: "orders.missing"}
	origins[8] = envelope.Origin{}
	messages[9].Payload = make([]byte, 2<<10)
	messages[10].Metadata["big"] = strings.Repeat("x", 200<<10)
	faults := map[int]error{7: brokers.ErrUnroutable, 8: nil, 9: brokers.ErrTooLarge, 10: brokers.ErrTooLarge}

	errs := b.RescheduleAll(t.Context(), origins, messages)
	require.Len(t, errs, n)
	for i, err := range errs {
		want, faulty := faults[i]
		switch {
		case !faulty:
			require.NoError(t, err, i)
		case want == nil:
			require.ErrorContains(t, err, "the origin names no topic")
		default:
			require.ErrorIs(t, err, want, i)
		}
	}
	require.ErrorContains(t, errs[7], `"orders.missing"`)
	require.Equal(t, n-len(faults), p.depth("orders.billing"))
	deliveries, err := p.ch.Consume("orders.billing", "", true, false, false, false, nil)
	require.NoError(t, err)
	for i := range n {
		if _, faulty := faults[i]; !faulty {
			d := <-deliveries
			require.Equal(t, strconv.Itoa(i), d.MessageId, "in their order")
			require.Equal(t, "orders", d.Headers["x-routing-key"], "as the handler got it before")
		}
	}

	require.Empty(t, b.RescheduleAll(t.Context(), nil, nil))
	errs = b.RescheduleAll(t.Context(), origins[:1], messages[:2])
	require.Len(t, errs, 2)
	require.ErrorContains(t, errs[0], "1 origins for 2 messages")
}

// While the connection is being cut, every message without an error is stored, and none is reported twice.
func TestRescheduleAll_ConfirmedIsStored(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, url)
	p := dialPlain(t, url)
	b := openBroker(t, proxy.URL(t, url), naming(brokers.Laravel()), params("grid", "false"), delays(time.Second))
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))

	const rounds, n = 5, 1500
	stored := map[string]bool{}
	for round := range rounds {
		origins, messages := make([]envelope.Origin, n), make([]*message.Message, n)
		for i := range n {
			origins[i] = envelope.Origin{Topic: "orders", Consumer: "orders"}
			messages[i] = message.NewMessage(fmt.Sprintf("%d/%d", round, i), []byte("x"))
		}
		cut := make(chan error, 1)
		go func() { cut <- proxy.Flap() }()
		for i, err := range b.RescheduleAll(t.Context(), origins, messages) {
			if err == nil {
				stored[messages[i].UUID] = true
			}
		}
		require.NoError(t, <-cut)
	}
	require.NotEmpty(t, stored)
	requireAllIn(t, p, "orders", stored)
}

// requireAllIn empties queue and fails unless it had all of ids.
func requireAllIn(t *testing.T, p *plain, queue string, ids map[string]bool) {
	t.Helper()
	n := p.depth(queue)
	deliveries, err := p.ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(t, err)
	for range n {
		delete(ids, (<-deliveries).MessageId)
	}
	require.Empty(t, ids, "confirmed, but not in the queue")
}
