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
		if f.Read(m, &death) {
			format = f.Name
			break
		}
		death = Death{}
	}
	lay, ok := envelope.OriginFrom(m.Context())
	if !ok {
		lay = &envelope.Origin{}
	}
	now := time.Now()
	death.complete(s, lay, now)

	origin := death.origin(s, lay)
	return &deadLetter{
		Message: keepable(m, origin, lay), Collected: envelope.Collected{Broker: s.Broker, From: s.Topic, Format: format},
		Reason: death.Reason, Err: death.Err, Class: death.Class, Rule: death.Rule, Handler: death.Handler,
		Origin: origin, Attempts: death.Attempts, FirstFailure: death.FirstFailure, At: death.At,
	}
}

// complete fills in what the message does not have, from the queue that it was in.
func (d *Death) complete(s *Source, lay *envelope.Origin, now time.Time) {
	queue := withoutSuffix(s.Topic)
	if d.Topic == "" && d.Consumer == "" {
		d.Topic = queue
		if lay.Exchange != "" || lay.Broker == "amqp" || lay.Broker == "amqps" {
			d.Consumer = queue // a queue is a consumer there
		}
	}
	if d.Topic == "" {
		d.Topic = d.Consumer
	}
	if d.Consumer == "" {
		// orders.billing_dlq has the dead letters of topic orders, group billing.
		if group, found := strings.CutPrefix(queue, d.Topic+"."); found {
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
	// There the broker's time is that of the record, not of the first publish.
	if d.At.IsZero() && lay.Broker == "kafka" {
		d.At = lay.Timestamp
	}
	if d.At.IsZero() || d.At.After(now) {
		d.At = now
	}
	if d.FirstFailure.IsZero() || d.FirstFailure.After(d.At) {
		d.FirstFailure = d.At
	}
}

// origin is where a redrive goes: the source's configuration, or else the message's.
func (d *Death) origin(s *Source, lay *envelope.Origin) envelope.Origin {
	o := envelope.Origin{
		Broker:     cmp.Or(s.Origin.Broker, lay.Broker),
		Topic:      cmp.Or(s.Origin.Topic, d.Topic),
		Consumer:   cmp.Or(s.Origin.Consumer, d.Consumer),
		Exchange:   cmp.Or(s.Origin.Exchange, d.Exchange),
		RoutingKey: cmp.Or(s.Origin.RoutingKey, d.RoutingKey),
		Key:        lay.Key,
		Partition:  d.Partition, Offset: d.Offset, Timestamp: d.Published, Incarnation: d.incarnation,
	}
	if d.Partition != nil && d.Offset != nil {
		o.Position = strconv.FormatInt(int64(*d.Partition), 10) + "/" + strconv.FormatInt(*d.Offset, 10)
		if d.lay != "" {
			o.Position = d.lay + ":" + o.Position
		}
	}
	return o
}

// keepable copies the message with a permanent id.
//
// The driver has given a record without an id one derived from its position in the dead letter topic. Its position in
// the original topic is better: it is the same when the service dead-letters it twice, and it is what the consumers of
// the topic would see.
func keepable(m *message.Message, origin envelope.Origin, lay *envelope.Origin) *message.Message {
	id := m.UUID
	if made := envelope.StableID(lay); made != "" && (id == made || id == "") {
		id = made
		if first := envelope.StableID(&origin); first != "" {
			id = first
		}
	}
	out := message.NewMessage(id, m.Payload)
	maps.Copy(out.Metadata, m.Metadata)
	if m.Metadata[envelope.KeyConsumer] == "" && m.Metadata[envelope.KeyRoutingKey] == lay.RoutingKey {
		// The RabbitMQ driver's headers for how the message came into the dead letter queue do not belong to the message.
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

// withoutSuffix guesses the queue from the name of its dead letter queue; without a known suffix it returns the name
// itself.
func withoutSuffix(name string) string {
	lower := strings.ToLower(name)
	for _, suffix := range suffixes {
		if len(name) > len(suffix) && strings.HasSuffix(lower, suffix) {
			return name[:len(name)-len(suffix)]
		}
	}
	return name
}
