package engine_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/envelope"
)

// consulted counts the calls of Reaches.
type consulted struct {
	*drivertest.Transport
	calls atomic.Int32
}

func (c *consulted) Reaches(ctx context.Context, o *driver.Outgoing, from driver.Transport) (bool, error) {
	c.calls.Add(1)
	return c.Transport.Reaches(ctx, o, from)
}

// A transport may have the topics of origins from messages. What is known of a subscription holds for all of them:
// otherwise there would be as much to remember as there are topics.
func TestReschedule_ThroughAnotherBrokerIsCheckedOnceForASubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, topics := drivertest.NewServer(rabbit()), 0
		s.With(func(h *drivertest.Hooks) {
			h.Delivery = func(d *driver.Delivery) {
				topics++
				d.Origin.Topic = "orders." + strconv.Itoa(topics)
			}
		})
		conn := s.Connect()
		counting := &consulted{Transport: conn}
		other, p := openOver(t, conn, counting), open(t, s)
		p.consume(func(m *message.Message) {
			origin, _ := envelope.OriginFrom(m.Context())
			if err := other.Reschedule(m.Context(), *origin, m.Copy(), time.Second); err != nil {
				t.Error(err)
			}
			m.Ack()
		})
		for i := range 5 {
			require.NoError(t, p.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), nil)))
			synctest.Wait()
		}
		require.EqualValues(t, 1, counting.calls.Load())
	})
}
