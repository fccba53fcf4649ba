package collector

import (
	"cmp"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

type deadLetter = envelope.DeadLetter

// read makes a dead letter of a message in a dead letter queue. It never fails.
func (c *Collector) read(s *Source, m *message.Message) *deadLetter {
	var death Death
	format := plain
	for _, f := range c.formats {
		if c.readAs(f, m, &death) {
			format = f.Name
			break
		}
		death = Death{}
	}
	found, ok := envelope.OriginFrom(m.Context())
	if !ok {
		found = &envelope.Origin{}
	}
	now := time.Now()
	death.complete(s, found, now)

	origin := death.origin(s, found)
	return &deadLetter{
		Message: withID(m, origin, found), Collected: envelope.Collected{Broker: s.Broker, From: s.Topic, Format: format},
		Reason: death.Reason, Err: death.Err, Class: death.Class, Rule: death.Rule, Handler: death.Handler,
		Origin: origin, Attempts: death.Attempts, FirstFailure: death.FirstFailure, At: death.At,
	}
}

// readAs reports whether the message is of the format. A format may panic, because programs add theirs: its message
// would be delivered again, and end the process each time.
func (c *Collector) readAs(f Format, m *message.Message, d *Death) (ok bool) {
	defer func() {
		if value := recover(); value != nil {
			c.cfg.Logger.ErrorContext(m.Context(), "a format panicked, and is ignored for this message", "format", f.Name,
				"message_id", m.UUID, "panic", value)
			ok = false
		}
	}()
	return f.Read(m, d)
}

// complete fills in what the message does not say, from the queue in which it was found.
func (d *Death) complete(s *Source, found *envelope.Origin, now time.Time) {
	queue := withoutSuffix(s.Topic)
	if d.Topic == "" && d.Consumer == "" {
		d.Topic = queue
		if found.Exchange != "" || found.Broker == "amqp" || found.Broker == "amqps" {
			d.Consumer = queue // a queue is a consumer there
		}
	}
	if d.Topic == "" {
		d.Topic = d.Consumer
	}
	if d.Consumer == "" {
		// orders.billing_dlq has the dead letters of topic orders, group billing.
		if group, ok := strings.CutPrefix(queue, d.Topic+"."); ok {
			d.Consumer = group
		}
	}
	if d.Reason == "" {
		d.Reason = envelope.ReasonExhausted
	}
	if d.Err.Message == "" {
		d.Err.Message = "dead-lettered to " + s.Topic + " without a reason"
		if d.Class != "" {
			d.Err.Message = d.Class
		}
	}
	// Kafka's time is that of the record in the dead letter topic; elsewhere it is that of the first publish.
	if d.At.IsZero() && found.Broker == "kafka" {
		d.At = found.Timestamp
	}
	if d.At.IsZero() || d.At.After(now) {
		d.At = now
	}
	if d.FirstFailure.IsZero() || d.FirstFailure.After(d.At) {
		d.FirstFailure = d.At
	}
}

// origin is where a redrive goes: the source's configuration, or else the message's.
func (d *Death) origin(s *Source, found *envelope.Origin) envelope.Origin {
	o := envelope.Origin{
		Broker:     cmp.Or(s.Origin.Broker, found.Broker),
		Topic:      cmp.Or(s.Origin.Topic, d.Topic),
		Consumer:   cmp.Or(s.Origin.Consumer, d.Consumer),
		Exchange:   cmp.Or(s.Origin.Exchange, d.Exchange),
		RoutingKey: cmp.Or(s.Origin.RoutingKey, d.RoutingKey),
		Key:        found.Key,
		Partition:  d.Partition, Offset: d.Offset, Timestamp: d.Published, Incarnation: d.incarnation,
	}
	if d.Partition != nil && d.Offset != nil {
		o.Position = strconv.FormatInt(int64(*d.Partition), 10) + "/" + strconv.FormatInt(*d.Offset, 10)
		if d.positionTopic != "" {
			o.Position = d.positionTopic + ":" + o.Position
		}
	}
	return o
}

// withID copies the message with a permanent id.
//
// The driver gives a record without an id one that it derives from its position in the dead letter topic. One from the
// position in the original topic is better: it is the same when the service dead-letters the message twice, and it is
// the one that consumers of that topic see.
func withID(m *message.Message, origin envelope.Origin, found *envelope.Origin) *message.Message {
	id := m.UUID
	if made := envelope.StableID(found); made != "" && (id == made || id == "") {
		id = made
		if first := envelope.StableID(&origin); first != "" {
			id = first
		}
	}
	out := message.NewMessage(id, m.Payload)
	maps.Copy(out.Metadata, m.Metadata)
	if m.Metadata[envelope.KeyConsumer] == "" && m.Metadata[envelope.KeyRoutingKey] == found.RoutingKey {
		// The RabbitMQ driver's headers say how the message came into the dead letter queue, which is not part of it.
		delete(out.Metadata, envelope.KeyRoutingKey)
		delete(out.Metadata, envelope.KeyExchange)
	}
	if id == "" {
		if out.UUID = envelope.Identify(out); out.UUID == "" {
			out.UUID = envelope.NewID()
		}
	}
	return out
}

// suffixes are common endings of the names of dead letter queues, ours and others'.
var suffixes = []string{
	"_dlq", ".dlq", "-dlq", "_dlt", ".dlt", "-dlt", ".failed", "_failed", "-failed", ".limbo", ".limbu", "_error",
	".error", "-error",
	"_skipped", ".deadletter", ".dead-letter", ".dead", "_poison", ".poison", "-poison", "_poisoned",
}

// withoutSuffix guesses a queue's name from that of its dead letter queue. A name without a known suffix is unchanged.
func withoutSuffix(name string) string {
	lower := strings.ToLower(name)
	for _, suffix := range suffixes {
		if len(name) > len(suffix) && strings.HasSuffix(lower, suffix) {
			return name[:len(name)-len(suffix)]
		}
	}
	return name
}
