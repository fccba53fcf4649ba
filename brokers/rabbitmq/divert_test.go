package rabbitmq

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// What is nearly due is held by the consumer, to the end.
func TestDivert_HoldsWhatIsNearlyDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{subscription: &subscription{broker: &Broker{design: &design{deliveryLimit: 20}}, stop: make(chan struct{})}}
		for _, wait := range []time.Duration{0, time.Millisecond, holdLimit} {
			due := time.Now().Add(wait)
			require.False(t, s.divert(&amqp.Delivery{Headers: amqp.Table{envelope.KeyNotBefore: due.UnixMilli()}}), wait)
			require.Equal(t, due, time.Now(), wait)
		}
	})
}

// The time until which a message waits is written in milliseconds, and never an earlier one.
func TestOutgoing_IsNeverDueEarly(t *testing.T) {
	b := &Broker{design: &design{}}
	for _, fraction := range []time.Duration{0, 1, 499 * time.Microsecond, 999_999} {
		due := time.UnixMilli(1_700_000_000_000).Add(fraction)
		o := b.outgoing(message.NewMessage("m", nil), route{checked: true, rest: fraction}, due)
		at, ok := integer(o.msg.Headers[envelope.KeyNotBefore])
		require.True(t, ok)
		require.False(t, time.UnixMilli(at).Before(due), fraction)
		require.Less(t, time.UnixMilli(at).Sub(due), time.Millisecond)
		rest, ok := integer(o.msg.Headers[keyRest])
		require.True(t, ok)
		require.GreaterOrEqual(t, time.Duration(rest)*time.Millisecond, fraction)
	}
}
