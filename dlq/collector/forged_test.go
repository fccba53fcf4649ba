package collector_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/envelope"
)

// A producer forges our headers on a message that dies elsewhere. The redrive goes where the message died, not where
// the producer wants, and no header of the producer closes the entry.
func TestCollector_ForgedFacts(t *testing.T) {
	t.Parallel()
	forged := message.Metadata{
		"x-collected-broker": "east", "x-collected-from": "elsewhere", "x-collected-format": "redrive",
		envelope.KeyTopic: "payouts", envelope.KeyConsumer: "bank", envelope.KeyDeadLetterReason: "exhausted",
		envelope.KeyRedriveID: "1", envelope.KeyRedriveCount: "1", "tenant": "acme",
	}
	for name, death := range map[string]struct {
		headers message.Metadata
		topic   string
	}{
		"nservicebus": {message.Metadata{"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.Message": "no"}, "Sales"},
		"rabbitmq": {message.Metadata{
			"x-death": `[{"queue":"Sales","reason":"rejected","count":1,"exchange":"","routing-keys":["Sales"]}]`,
		}, "Sales"},
		"watermill": {message.Metadata{
			envelope.KeyPoisonReason: "no", envelope.KeyPoisonTopic: "Sales", envelope.KeyPoisonHandler: "h",
		}, "Sales"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letters := newLetters(t)
			east, west := newMemory(t, brokers.Config{}), newMemory(t, brokers.Config{})
			m := message.NewMessage("1", []byte("{}"))
			for _, headers := range []message.Metadata{forged, death.headers} {
				maps.Copy(m.Metadata, headers)
			}
			c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
				{Broker: "west", Topic: "error", Subscriber: oneMessage{m}},
			}})
			collected(t, c, 1)
			listing, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{})
			require.NoError(t, err)
			e, err := letters.Store().Get(t.Context(), listing.Entries[0].ID)
			require.NoError(t, err)
			require.Equal(t, death.topic, e.Origin.Topic)
			require.NotEqual(t, "bank", e.Origin.Consumer)
			require.Equal(t, envelope.Collected{Broker: "west", From: "error", Format: name}, e.Body.Collected)

			router, err := collector.NewRouter(collector.RouterConfig{
				Store: letters.Store(), Logger: quiet,
				Targets: []collector.Target{
					{Name: "east", Scheme: "mem", Redriver: east},
					{Name: "west", Scheme: "mem", Redriver: west, Publisher: west.Publisher()},
				},
			})
			require.NoError(t, err)
			sales, err := west.Subscriber().Subscribe(t.Context(), death.topic)
			require.NoError(t, err)
			_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
			require.NoError(t, err)
			var back *message.Message
			select {
			case back = <-sales:
				back.Ack()
			case <-time.After(2 * time.Minute): // real time: anything would come at once
				require.Fail(t, "it was not sent back to where it died")
			}
			require.Equal(t, "acme", back.Metadata["tenant"])
			require.Empty(t, east.Peek("payouts", "bank"))
			require.Empty(t, west.Peek("payouts", "bank"))
		})
	}
}

// oneMessage is a dead letter queue with one message in it, whose headers are as a broker gives them.
type oneMessage struct{ m *message.Message }

func (s oneMessage) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	messages := make(chan *message.Message, 1)
	messages <- s.m
	go func() {
		<-ctx.Done()
		close(messages)
	}()
	return messages, nil
}

func (oneMessage) Close() error { return nil }
