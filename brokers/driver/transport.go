package driver

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// Transport is an open connection to a broker. All methods are safe for concurrent use. The engine closes it after
// every stream and every publication has ended.
type Transport interface {
	// Publish stores each message durably at its destination. It returns one error for each message, nil for those that
	// are stored, or just nil if all are. brokers.ErrUnroutable, brokers.ErrTooLarge and brokers.ErrUnsupported are
	// final and mean that the message was not stored; after any other error it may have been, and the engine's caller
	// tries again.
	//
	// Publish creates the other places in which the transport keeps messages, which Declare does not create: wait queues
	// and dead letter queues, at their first use and after an operator has deleted them.
	//
	// Messages of one call to one destination are stored in order. A refused one must not affect the others. Publish
	// neither changes the messages nor keeps them after it has returned; it renders [Outgoing.Headers], not the metadata.
	Publish(ctx context.Context, out []Outgoing) []error

	// Declare creates what q needs, or checks that it exists. It is called before the first Receive of q, and again when a
	// stream of q fails with brokers.ErrUnroutable, because operators delete queues. Messages published after it are kept
	// for q.
	Declare(ctx context.Context, q Queue) error

	// Receive opens a stream of q's messages. It returns when the broker has accepted the consumer.
	Receive(ctx context.Context, q Queue) (Stream, error)

	// Capabilities returns what the broker supports as it is configured. MaxMessageBytes is the limit of a first
	// publication; where the server's own limit is known, it must be smaller by [Headroom], so that every published
	// message can be retried.
	Capabilities() brokers.Capabilities

	// Traits tells the engine how to treat the transport. The result never changes.
	Traits() Traits

	// Ping checks that the broker answers. It fails with the fault that keeps the broker from storing and delivering
	// messages.
	Ping(ctx context.Context) error

	// Close releases everything. It is called once, and returns soon after ctx has ended.
	Close(ctx context.Context) error
}

// Stream is one consumer's queue, as long as the broker lets this process read it.
type Stream interface {
	// Next waits for the next delivery. It is called by one goroutine at a time. It returns ctx's error when ctx ends,
	// without losing a delivery: it is returned by a later call, or goes back to the queue on Close. Any other error ends
	// the stream, and the engine opens another, paced. brokers.ErrUnroutable means that the queue is gone and has to be
	// declared.
	Next(ctx context.Context) (Delivery, error)

	// Settle reports how deliveries of this stream ended. It returns one error for each settlement, nil for those that
	// the broker knows of, or just nil if it knows of all: [ErrLost] is final; after any other error the engine may try
	// again. It is called concurrently.
	Settle(ctx context.Context, settled []Settlement) []error

	// Close ends the stream. Messages in flight return to the queue. It returns when every settlement accepted by Settle
	// has reached the broker, or ctx ends. It is called once, even after Next has failed.
	Close(ctx context.Context) error
}

// Queue is what one consumer reads: the messages of a topic, for a group.
type Queue struct {
	// Topic as given to Subscribe, possibly a pattern if Capabilities.Patterns.
	Topic string
	// Group of the consumer, brokers.DefaultGroup if it has none.
	Group string
	// Names are derived from Topic and Group by the naming scheme.
	Names brokers.Names
	// Patterns are bound to the queue in addition to Topic.
	Patterns []string
	// Concurrency is how many handlers run at once.
	Concurrency int
	// Window is how many deliveries may be in flight. A transport must not prefetch more.
	Window int
	// DrainTimeout bounds the wait for running handlers, at shutdown and when a partition is revoked.
	DrainTimeout time.Duration
	// Params are the transport's own parameters for this subscriber.
	Params brokers.Params
}

// DestinationKind is a kind of [Destination].
type DestinationKind uint8

// The kinds of destinations.
const (
	ToTopic       DestinationKind = iota // every reader of Topic
	ToConsumer                           // the one consumer named by Topic and Consumer
	ToDeadLetters                        // the dead letter queue of that consumer, Names.Dead
)

// Destination is where a message goes.
type Destination struct {
	Kind DestinationKind
	// Topic that is published to, or that the consumer subscribed to.
	Topic string
	// Consumer as in envelope.Origin. Empty for ToTopic.
	Consumer string
	// Names of the consumer; for ToTopic, of a consumer without a group.
	Names brokers.Names
}

// Outgoing is one publication.
type Outgoing struct {
	Message *message.Message
	// To is shared by the publications to one destination: do not modify it.
	To *Destination
	// Due is the earliest time at which the message may be dispatched. The zero time means now. It is within
	// Capabilities.MaxDelay.
	Due time.Time
	// Delay is the requested time until Due, by which the transport chooses the waiting place.
	Delay time.Duration
	// First reports that no handler of the consumer has received the message yet. A message with Due that is not First
	// waits for a retry.
	First bool
	// Origin is where the message was delivered from, nil for ToTopic. A transport takes from it what must not change:
	// partition and key, exchange and routing key. If the delivery is still in flight, the transport may change the stored
	// message instead of storing a second one; the Ack that follows must then be accepted without effect.
	Origin *envelope.Origin
	// ExistingOnly requires that the message be refused with brokers.ErrUnroutable if its destination is missing, and that
	// nothing be created for it.
	ExistingOnly bool
	// Extra are headers that the engine adds to those of the message, and that override them.
	Extra []Header
}

// Header is one header of a message.
type Header struct{ Key, Value string }

// Headers yields the headers to store: those of the message that no broker made, and Extra.
func (o *Outgoing) Headers() func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		for k, v := range o.Message.Metadata {
			if envelope.IsBrokerMade(k) || slices.ContainsFunc(o.Extra, func(h Header) bool { return h.Key == k }) {
				continue
			}
			if !yield(k, v) {
				return
			}
		}
		for _, h := range o.Extra {
			if !yield(h.Key, h.Value) {
				return
			}
		}
	}
}

// Metadata returns the headers yielded by [Outgoing.Headers]. It may be the message's own metadata, so do not modify
// it.
func (o *Outgoing) Metadata() message.Metadata {
	own := len(o.Extra) == 0
	for k := range o.Message.Metadata {
		own = own && !envelope.IsBrokerMade(k)
	}
	if own {
		return o.Message.Metadata
	}
	headers := make(message.Metadata, len(o.Message.Metadata)+len(o.Extra))
	maps.Insert(headers, o.Headers())
	return headers
}

// Size is the number of bytes of payload, header names and header values together.
func (o *Outgoing) Size() int64 {
	n := len(o.Message.Payload)
	for k, v := range o.Headers() {
		n += len(k) + len(v)
	}
	return int64(n)
}

// Delivery is one message handed to this process, until it is settled.
type Delivery struct {
	// Message as it was stored. The engine owns it; its context is set by the engine.
	Message *message.Message
	// Origin has what the transport knows: Position, Key, Partition, Offset, Exchange, RoutingKey, Timestamp, Redelivered,
	// DeliveryCount. The engine fills in Broker, Topic and Consumer unless the transport did.
	Origin envelope.Origin
	// FromTopic reports that any producer may have written the message, headers included: the engine ignores marks that it
	// writes itself only to retries. False if it came back from a consumer, or may have.
	FromTopic bool
	// Rest is how long the message must still wait, by the broker's clock if it has one. Only [Traits.Early] transports
	// set it, and only for messages from a place where messages wait: a producer's value is ignored.
	Rest time.Duration
	// Suspect is how many deliveries of the message ended without an answer: evidence, not proof, that it kills its
	// process. Cut connections and restarts count too. 0 if Capabilities.DeliveryCount is false.
	Suspect int
	// NearLimit reports that the broker is about to drop the message because of its number of deliveries, regardless of
	// their cause: the engine publishes it again, behind the others, so that the broker's count restarts.
	NearLimit bool
	// Malformed is why the message cannot be read, empty if it can. Such a message carries the available bytes, reaches no
	// handler, and becomes a dead letter with envelope.ReasonMalformed.
	Malformed string
	// Earlier is how often the message was dispatched before, as far as the broker counts. The pause of a nack grows with
	// it.
	Earlier int
	// Order, if not empty, is the key of an ordered sequence: deliveries with the same Order are dispatched one after the
	// other, each after the previous one was acked.
	Order string
	// Token is for the transport's own use.
	Token any
}

// Answer is how a delivery is settled.
type Answer uint8

// The answers.
const (
	// Ack: the message is done.
	Ack Answer = iota
	// Nack: the message was dispatched and is redelivered, after Settlement.Pause if [Traits.NackPause].
	Nack
	// Release: the message returns to its place in the queue as if it had not been delivered. It does not count for
	// Suspect.
	Release
)

// Settlement reports how a delivery ended.
type Settlement struct {
	Delivery *Delivery
	Answer   Answer
	// Pause before a nacked message is dispatched again. 0 during a shutdown.
	Pause time.Duration
	// Skipped reports that no handler has received the message, which is acked because its consumer has dealt with another
	// copy of it.
	Skipped bool
}

// Traits tells the engine how to treat a transport. The zero value fits a broker that stores one message at a time,
// waits natively or not at all, and takes nacked messages back at once.
type Traits struct {
	// Name of the transport in errors and logs, such as rabbitmq. Required.
	Name string
	// Prompt transports return from every call as soon as its context ends, whatever the broker does. The engine calls the
	// others in a goroutine that it can abandon, which costs a few allocations per call.
	Prompt bool
	// Local transports never wait for anything outside this process: the engine calls them without a deadline.
	Local bool
	// SettleLocal transports never wait for anything outside this process in Settle: the engine calls it without a
	// deadline, directly when the delivery is acked or nacked.
	SettleLocal bool
	// Early transports may dispatch a message before it is due; see [Delivery.Rest].
	Early bool
	// DelayRetriesOnly transports delay messages for one consumer, and leave those for a topic to the engine's Delays.
	DelayRetriesOnly bool
	// Ordered transports set [Delivery.Order].
	Ordered bool
	// NackPause transports implement the pause of a nack. For the others the engine holds the message until the
	// pause is over and hands it out again in place, which no broker counts.
	NackPause bool
	// PublishBatch is the ideal number of messages for one Publish. The engine merges messages that concurrent callers
	// publish to one destination. 0 and 1 mean that merging gains nothing: the client pipelines on its own.
	PublishBatch int
	// SettleBatch is the ideal number of settlements for one Settle, and SettleLinger how long one may wait for others.
	// The engine waits for no more than half the window. 0 and 1 mean no batching. A crash redelivers everything that has
	// not been settled.
	SettleBatch  int
	SettleLinger time.Duration
	// SettleFrees transports send the next delivery when one is settled: settlements then wait for each other only in a
	// quarter of the window's slots that no handler needs, or in a sixteenth of the window.
	SettleFrees bool
	// ConsumerIsQueue transports identify a consumer by its queue, Names.Queue, in envelope.Origin; the others by its
	// group.
	ConsumerIsQueue bool
	// StablePosition transports fill in Origin.Position, stable over redeliveries and unique forever.
	StablePosition bool
	// NeedsGroup transports have no consumers without a group: Subscribe without one fails.
	NeedsGroup bool
	// OwnRoom transports keep retries and dead letters in separate places, which accept more than
	// Capabilities.MaxMessageBytes, and refuse messages that are too large there themselves.
	OwnRoom bool
	// HoldLimit is the longest Rest for which a message is held, because publishing it again would take longer.
	// Defaults to 20 ms.
	HoldLimit time.Duration
}
