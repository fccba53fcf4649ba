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

// ErrPublish means that the broker did not accept the message of a redrive: the entry is as before.
var ErrPublish = errors.New("the broker did not accept the message")

// Redriver sends a message back to the consumer that it came from. It returns nil when the broker has confirmed it. A
// brokers.Broker is a Redriver.
type Redriver interface {
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error
}

// RedriverFunc makes a function a Redriver: for example one that chooses a broker by origin.Broker.
type RedriverFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f RedriverFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// RedriveMessage is the message that redrives an entry, whose Body must be set: the dead payload, headers and id, with
// a retry count of 0 and with the entry's id and redrive number, by which its outcome is matched.
func RedriveMessage(e *Entry) *message.Message {
	m := message.NewMessage(e.Body.UUID, e.Body.Payload)
	maps.Copy(m.Metadata, e.Body.Headers)
	out := envelope.PrepareRedrive(m, envelope.Redrive{ID: driver.FormatID(e.ID), Count: e.RedriveCount, Run: e.Run})
	out.SetContext(driver.WithCollected(out.Context(), e.Body.Collected))
	return out
}
