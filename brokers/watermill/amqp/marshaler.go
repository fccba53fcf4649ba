package amqp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Marshaler writes the same as watermill-amqp's DefaultMarshaler, and reads every delivery: the default one fails on a
// header that is not a string, and watermill-amqp then redelivers the message forever, before any handler.
type Marshaler struct{ wamqp.DefaultMarshaler }

var _ wamqp.Marshaler = Marshaler{}

// errGhost makes watermill-amqp consume again: it treats the end of a consumer, whose queue was deleted, as an empty
// message.
var errGhost = errors.New("the consumer was cancelled")

// maxShortString is the longest text of a property or a header's name. amqp091-go closes the connection, which all
// publishers and subscribers share, when it cannot encode one.
const maxShortString = 255

// Marshal leaves out the broker's own headers: a server treats some of them as instructions.
func (m Marshaler) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p, err := m.DefaultMarshaler.Marshal(msg)
	if len(msg.UUID) <= maxShortString {
		p.MessageId = msg.UUID // for readers that do not use Watermill
	}
	for key := range p.Headers {
		if len(key) > maxShortString {
			return p, fmt.Errorf("%w: a header's name has %d bytes, AMQP allows %d",
				brokers.ErrTooLarge, len(key), maxShortString)
		}
		// A CC of another delivery misroutes the message, and one that is a string closes the channel.
		if envelope.IsBrokerMade(key) || key == "CC" || key == "BCC" {
			delete(p.Headers, key)
		}
	}
	return p, err
}

// Unmarshal renders every header as text. A message without Watermill's id has that of the AMQP property, if any.
func (m Marshaler) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errGhost
	}
	texts := make(amqp091.Table, len(d.Headers)+1)
	for key, value := range d.Headers {
		texts[key] = text(value)
	}
	d.Headers = texts
	msg, err := m.DefaultMarshaler.Unmarshal(d)
	if err == nil && msg.UUID == "" {
		msg.UUID = d.MessageId
	}
	return msg, err
}

// tolerant delivers unchanged what a user's marshaler refuses, so that the handler fails and the message becomes a dead
// letter: watermill-amqp would redeliver it forever.
type tolerant struct {
	wamqp.Marshaler

	refused func(d *amqp091.Delivery, err error)
}

// Unmarshal implements watermill-amqp's Marshaler.
func (t tolerant) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if d.Acknowledger == nil {
		return nil, errGhost
	}
	msg, err := t.Marshaler.Unmarshal(d)
	if err == nil {
		return msg, nil
	}
	t.refused(&d, err)
	return Marshaler{}.Unmarshal(d)
}

func text(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case []byte:
		return string(v)
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case amqp091.Table, []any:
		if b, err := json.Marshal(v); err == nil {
			return string(b)
		}
	}
	return fmt.Sprint(value)
}
