package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// queue describes what one subscription reads, or returns why it cannot be read.
func (b *Broker) queue(topic string, cfg *brokers.SubscriberConfig) (driver.Queue, error) {
	q := driver.Queue{
		Topic:        topic,
		Group:        groupName(cfg.Group),
		Names:        b.namesFor(topic, cfg.Group),
		Patterns:     cfg.Patterns,
		Concurrency:  cfg.Concurrency,
		Window:       cfg.Concurrency,
		DrainTimeout: cfg.DrainTimeout,
		Params:       cfg.Params,
	}
	if b.declared("prefetch") {
		q.Window = max(q.Window, cfg.Params.Int("prefetch"))
	}
	if topic == "" {
		return q, errors.New("the topic has no name")
	}
	if !b.caps.Patterns {
		if len(cfg.Patterns) > 0 || brokers.IsPattern(topic) {
			return q, fmt.Errorf("%w: %q is a pattern or has some (WithPatterns), which this broker does not support: open "+
				"it with naming=service-bus, or subscribe to each topic by its name", brokers.ErrUnsupported, topic)
		}
		return q, nil
	}
	q.Patterns = b.expected.patterns(topic, cfg.Patterns)
	return q, nil
}

// declared reports whether the driver has a parameter of that name.
func (b *Broker) declared(name string) bool {
	return slices.ContainsFunc(b.params, func(p brokers.Param) bool { return p.Name == name })
}

// expected is what the pipelines of a broker have announced before their consumers subscribe: the waits of their
// retries, shortest first, and the system events that they handle.
type expected struct {
	mu     sync.Mutex
	delays []time.Duration
	events []string
}

// add records the announcements of one pipeline, and returns all waits.
func (e *expected) add(delays []time.Duration, events []string) []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delays = union(e.delays, delays)
	e.events = union(e.events, events)
	return slices.Clone(e.delays)
}

// patterns returns patterns and those system events that neither they nor topic include.
func (e *expected) patterns(topic string, patterns []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := slices.Clone(patterns)
	for _, event := range e.events {
		if event != topic && !slices.Contains(all, event) {
			all = append(all, event)
		}
	}
	return all
}

// readers tracks which subscriptions of this process read which queue, by its name according to the naming scheme, even
// on brokers that do not use it: a program that is tested in memory must not fail on RabbitMQ. Two subscriptions of one
// queue share its messages; with different topics, patterns or groups each would get, and ack, a random half of the
// other's messages.
type readers struct {
	mu     sync.Mutex
	queues map[string]*reader
}

// reader is what the subscriptions of one queue have in common.
type reader struct {
	driver.Queue
	count int
}

// join records a subscription, or returns why it is not possible. leave removes it; calling it again does nothing.
func (r *readers) join(next driver.Queue) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := next.Names.Queue
	have := r.queues[name]
	if have == nil {
		have = &reader{Queue: next}
		r.queues[name] = have
	} else if err := have.shares(&next); err != nil {
		return nil, fmt.Errorf("%w: %w", brokers.ErrUnsupported, err)
	}
	have.count++
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if have.count--; have.count == 0 {
			delete(r.queues, name)
		}
	}), nil
}

// has reports whether a subscription of this process reads the queue.
func (r *readers) has(queue string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queues[queue] != nil
}

// shares returns why next cannot also read the queue.
func (have *reader) shares(next *driver.Queue) error {
	named := func(group string) string {
		if group == brokers.DefaultGroup {
			return ""
		}
		return group
	}
	switch {
	case have.Topic != next.Topic || !slices.Equal(union(have.Patterns), union(next.Patterns)):
		return fmt.Errorf("queue %q is read for %s already, and each handler would get a part of the other's messages: "+
			"give each handler a group (WithGroup), or subscribe once, to one of them WithPatterns of the others",
			next.Names.Queue, strings.Join(append([]string{have.Topic}, have.Patterns...), ", "))
	case have.Group != next.Group:
		return fmt.Errorf("queue %q is read by group %q already, and group %q would share its messages, because the naming "+
			"scheme has no {group} in the queue's name: choose a scheme that has, such as default, or put {group} into its "+
			"queue",
			next.Names.Queue, named(have.Group), named(next.Group))
	case next.Group == brokers.DefaultGroup:
		return fmt.Errorf("topic %s is read by a handler without a group already, and both would share its messages: give "+
			"each handler a group (WithGroup) to let both see every message, the same group to share them, or raise the "+
			"concurrency of one", next.Topic)
	}
	return nil
}

// union returns the elements of lists, sorted, each once.
func union[T ~int64 | ~string](lists ...[]T) []T {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

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
