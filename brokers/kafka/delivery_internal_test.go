package kafka

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// A record of a recreated topic has the position of one that still waits for its retry. When both were in flight, the
// retry of one counted as the other's: its key was held back for good, and the first one's order was lost.
func TestOutcomes_DistinguishRecreatedTopics(t *testing.T) {
	var all outcomes
	before := &envelope.Origin{Topic: "orders", Consumer: "billing", Position: "0/5", Incarnation: "first"}
	after := *before
	after.Incarnation = "second"
	one, other := all.begin(before), all.begin(&after)
	all.note(&driver.Outgoing{
		Message: message.NewMessage("1", nil),
		To:      &driver.Destination{Kind: driver.ToConsumer, Topic: "orders", Consumer: "billing"}, Origin: before,
		Extra: []driver.Header{{Key: envelope.KeyStage, Value: "s"}},
	})
	require.Empty(t, all.end(&after, other).retries)
	require.Equal(t, []string{"s"}, all.end(before, one).retries)
}
