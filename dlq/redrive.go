package dlq

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// ErrPublish means that the broker did not take the message of a redrive: the entry waits as before.
var ErrPublish = errors.New("the broker did not take the message")

// Redriver puts a message back in front of the consumer that it came from. It returns nil when the broker has confirmed
// it. A brokers.Broker is one.
type Redriver interface {
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error
}

// RedriverFunc makes a Redriver of a function: one that chooses among brokers by origin.Broker, for example.
type RedriverFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f RedriverFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// RedriveMessage is the message that redrives an entry, whose Body must be there: the payload, headers and id that
// died, with a retry count of 0, and with the entry's id and the number of the redrive, by which its outcome finds
// back.
func RedriveMessage(e *Entry) *message.Message {
	m := message.NewMessage(e.Body.UUID, e.Body.Payload)
	maps.Copy(m.Metadata, withoutForged(e.Body.Headers))
	out := envelope.PrepareRedrive(m, envelope.Redrive{ID: driver.FormatID(e.ID), Count: e.RedriveCount, Run: e.Run})
	out.SetContext(driver.WithCollected(out.Context(), e.Body.WhereCollected()))
	return out
}
