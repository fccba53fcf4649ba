package sqlqueue_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Each message goes to its own consumer, and only the messages without a consumer fail.
func TestRescheduleAll_ReachesEachConsumer(t *testing.T) {
	t.Parallel()
	queue := openURL(t, fileURL(t, ""))
	const n = 1200 // more than fit one statement
	received := map[string]<-chan *message.Message{}
	for _, group := range []string{"billing", "mail"} {
		messages, err := queue.Subscriber(brokers.WithGroup(group), brokers.WithConcurrency(n)).Subscribe(t.Context(),
			"orders")
		require.NoError(t, err)
		received[group] = messages
	}
	var (
		origins []envelope.Origin
		batch   []*message.Message
	)
	for i := range n {
		group := []string{"billing", "mail", "missing"}[i%3]
		origins = append(origins, envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: group})
		batch = append(batch, message.NewMessage(fmt.Sprint(group, i), []byte(group)))
	}
	faults := queue.RescheduleAll(t.Context(), origins, batch)
	require.Len(t, faults, n)
	for i, err := range faults {
		if i%3 == 2 {
			require.ErrorIs(t, err, brokers.ErrUnroutable)
		} else {
			require.NoError(t, err)
		}
	}
	for group, messages := range received {
		for range n / 3 {
			m := <-messages
			require.Equal(t, group, string(m.Payload))
			m.Ack()
		}
	}
	for _, err := range queue.RescheduleAll(t.Context(), origins[:1], batch) {
		require.ErrorContains(t, err, "1 origins for 1200 messages")
	}
}

// A batch is one transaction. If the database refuses one of its messages, all others are stored nevertheless: they
// are redrives that have nothing to do with it.
func TestRescheduleAll_ARefusedMessageFailsAlone(t *testing.T) {
	t.Parallel()
	queue := openURL(t, fileURL(t, ""))
	messages, err := queue.Subscriber(brokers.WithGroup("billing")).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	origin := envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"}
	var (
		origins []envelope.Origin
		batch   []*message.Message
	)
	for i := range 600 {
		origins = append(origins, origin)
		batch = append(batch, message.NewMessage(strconv.Itoa(i), nil))
	}
	queue.BreakInserts(t, "uuid = '599'")
	for i, err := range queue.RescheduleAll(t.Context(), origins, batch) {
		if i == 599 {
			require.ErrorContains(t, err, "refused by the test")
		} else {
			require.NoError(t, err, i)
		}
	}
	require.NoError(t, queue.Reschedule(t.Context(), origin, message.NewMessage("next", nil), 0))
	for i := range 600 {
		m := <-messages
		if i < 599 {
			require.Equal(t, strconv.Itoa(i), m.UUID)
		} else {
			require.Equal(t, "next", m.UUID)
		}
		m.Ack()
	}
}
