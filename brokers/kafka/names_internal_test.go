package kafka

import (
	"log/slog"
	"strconv"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// The origins of redriven messages and the topics of delayed ones come from outside: remembering each of them would
// fill the memory of a long-lived process, and make every count of Depths slower.
func TestTransport_NamesFromMessagesAreBounded(t *testing.T) {
	t.Parallel()
	cfg, err := brokers.Config{URL: "kafka://localhost?group=g", Logger: slog.New(slog.DiscardHandler)}.
		Resolve(Driver{}.Params())
	require.NoError(t, err)
	b, err := newTransport(cfg)
	require.NoError(t, err)

	for i := range 3 * maxNames {
		topic := "topic-" + strconv.Itoa(i)
		for kind, group := range map[driver.DestinationKind]string{driver.ToConsumer: "group", driver.ToTopic: ""} {
			o := driver.Outgoing{Message: message.NewMessage("1", nil), Origin: &envelope.Origin{}, Delay: nowTier}
			o.Due = o.Due.Add(1)
			o.To = &driver.Destination{Kind: kind, Topic: topic, Consumer: group, Names: cfg.Naming.For(topic, group)}
			require.NotEmpty(t, b.render(&o).Topic)
		}
	}
	names := 0
	for range b.names.Range {
		names++
	}
	require.LessOrEqual(t, names, maxNames)
	require.LessOrEqual(t, len(b.waiters), maxWaiters)
}
