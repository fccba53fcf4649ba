package rabbitmq

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// The due time is written in milliseconds, and never rounded down.
func TestOutgoing_IsNeverDueEarly(t *testing.T) {
	tr := &transport{design: &design{
		transport: transportTTL, delays: delaySteps([]time.Duration{time.Second}, false),
	}}
	to := &driver.Destination{Kind: driver.ToConsumer, Topic: "orders", Names: brokers.Names{Queue: "orders"}}
	for _, fraction := range []time.Duration{0, 1, 499 * time.Microsecond, 999_999} {
		due := time.UnixMilli(1_700_000_000_000).Add(fraction)
		o, err := tr.outgoing(&driver.Outgoing{
			Message: message.NewMessage("m", nil), To: to, Due: due, Delay: 5*time.Second + fraction, Origin: &envelope.Origin{},
		})
		require.NoError(t, err)
		at, ok := integer(o.msg.Headers[envelope.KeyNotBefore])
		require.True(t, ok)
		require.False(t, time.UnixMilli(at).Before(due), fraction)
		require.Less(t, time.UnixMilli(at).Sub(due), time.Millisecond)
		rest, ok := integer(o.msg.Headers[keyRest])
		require.True(t, ok)
		require.GreaterOrEqual(t, time.Duration(rest)*time.Millisecond, 4*time.Second+fraction)
	}
}
