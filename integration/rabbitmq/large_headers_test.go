package rabbitmq_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// A foreign producer's headers fill the frame that all headers of a message must fit, so that there is no room for
// those of a retry or a dead letter. The message used to be nacked forever, and to hold up those behind it.
func TestConsume_HeadersWithoutRoomForOurs(t *testing.T) {
	t.Parallel()
	for title, scheme := range map[string]brokers.NameScheme{"default": {}, "laravel": brokers.Laravel()} {
		for name, size := range map[string]int{"nearly full": 126 << 10, "full": 131_000} {
			t.Run(name+", "+title, func(t *testing.T) {
				t.Parallel()
				url := services.SharedRabbitMQ(t).VHost(t)
				p := dialPlain(t, url)
				b := openBroker(t, url, naming(scheme), delays(100*time.Millisecond))
				note := strings.Repeat("n", size)
				s := serve(t, b, "orders", middleware.Config{
					MaxAttempts: 2, Backoff: middleware.Constant(100 * time.Millisecond),
				}, func(m *message.Message) error {
					if m.Metadata["note"] == note && m.Metadata[envelope.KeyRedriveID] == "" {
						return errDown
					}
					return nil
				})
				p.send("", "orders", amqp.Publishing{
					MessageId: "large", ContentType: "text/plain", Body: []byte("payload"),
					Headers: amqp.Table{"note": note, "count": int32(7)},
				})
				p.send("", "orders", amqp.Publishing{MessageId: "next"})
				attempts := 2
				if title == "laravel" { // a foreign consumer of the queue could not read the retry
					attempts = 1
				}
				seen := map[string]int{}
				for range attempts + 1 {
					seen[s.next().message.UUID]++
				}
				require.Equal(t, map[string]int{"large": attempts, "next": 1}, seen)

				dead := openBroker(t, url, naming(brokers.Laravel()), params("declare", "read"))
				letters, err := dead.Subscriber().Subscribe(t.Context(), "orders_dlq")
				require.NoError(t, err)
				m := <-letters
				require.Equal(t, "large", m.UUID)
				require.Equal(t, "payload", string(m.Payload))
				require.Equal(t, "text/plain", m.Metadata[envelope.KeyAMQPContentType])
				require.Equal(t, "exhausted", m.Metadata[envelope.KeyDeadLetterReason])
				require.Zero(t, strings.Compare(note, m.Metadata["note"]), "Equal would print both")
				await.None(t, func() int { return p.depth("orders") })
				require.Empty(t, s.runs)

				again := m.Copy()
				m.Ack()
				again.Metadata[envelope.KeyRedriveID] = "1"
				err = b.Reschedule(t.Context(), envelope.Origin{Topic: "orders", Consumer: "orders"}, again, 0)
				if title == "laravel" {
					require.ErrorIs(t, err, brokers.ErrTooLarge)
					return
				}
				require.NoError(t, err)
				redriven := s.next().message
				require.Equal(t, "payload", string(redriven.Payload))
				require.Zero(t, strings.Compare(note, redriven.Metadata["note"]), "Equal would print both")
				require.Equal(t, "7", redriven.Metadata["count"])
				require.Contains(t, redriven.Metadata[envelope.KeyHeaderTypes], `"count":"I"`)
			})
		}
	}
}
