package engine

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// maxDestinations bounds the cached destinations, because topics and consumers also come from messages.
const maxDestinations = 4096

// destinations caches destinations: names come from templates, whose parsing is a tenth of the work of a retry.
type destinations struct {
	known sync.Map // destinationKey to *driver.Destination
	count atomic.Int64
}

type destinationKey struct {
	kind            driver.DestinationKind
	topic, consumer string
}

// destination returns the destination of a kind. consumer is named as in envelope.Origin, empty for driver.ToTopic.
func (b *Broker) destination(kind driver.DestinationKind, topic, consumer string) *driver.Destination {
	key := destinationKey{kind, topic, consumer}
	if known, ok := b.destinations.known.Load(key); ok {
		return known.(*driver.Destination)
	}
	made := &driver.Destination{Kind: kind, Topic: topic, Consumer: consumer}
	if kind == driver.ToTopic {
		made.Names = b.namesFor(topic, "")
	} else {
		made.Names = b.namesOf(topic, consumer)
	}
	if b.destinations.count.Add(1) > maxDestinations {
		b.destinations.known.Clear()
		b.destinations.count.Store(1)
	}
	known, _ := b.destinations.known.LoadOrStore(key, made)
	return known.(*driver.Destination)
}

// namesFor returns the names of a group on topic.
func (b *Broker) namesFor(topic, group string) brokers.Names {
	if b.namer != nil {
		return b.namer.NamesFor(topic, group)
	}
	return b.cfg.Naming.For(topic, group)
}

// namesOf returns the names of a consumer as envelope.Origin names it.
func (b *Broker) namesOf(topic, consumer string) brokers.Names {
	switch {
	case b.namer != nil:
		return b.namer.NamesOf(topic, consumer)
	case b.traits.ConsumerIsQueue:
		return b.cfg.Naming.ForQueue(topic, consumer)
	default:
		return b.cfg.Naming.For(topic, consumer)
	}
}

// consumerOf is the name of q's consumer in envelope.Origin.
func (b *Broker) consumerOf(q *driver.Queue) string {
	if b.traits.ConsumerIsQueue {
		return q.Names.Queue
	}
	return q.Group
}

// consumerIn returns the consumer named by origin, or the one that this broker's own group would be on its topic.
func (b *Broker) consumerIn(origin *envelope.Origin) string {
	if origin.Consumer != "" {
		return origin.Consumer
	}
	q := driver.Queue{Topic: origin.Topic, Group: groupName(b.cfg.Group), Names: b.namesFor(origin.Topic, b.cfg.Group)}
	return b.consumerOf(&q)
}

// groupName names the group of a consumer without one, so that an origin always has one.
func groupName(name string) string { return cmp.Or(name, brokers.DefaultGroup) }
