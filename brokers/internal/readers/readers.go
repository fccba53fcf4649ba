// Package readers has the rule on who may read a queue, the same for every broker.
package readers

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-go/redrive/brokers"
)

// Readers tracks which subscriptions of this process read which queue. Two subscriptions of one queue share its
// messages; with different topics, patterns or groups each would get, and ack, a random half of the other's messages.
// The zero value is ready for use, and safe for concurrent use.
type Readers struct {
	mu     sync.Mutex
	queues map[string]*reader
}

type reader struct {
	Reader
	count int
}

// Reader is one subscription.
type Reader struct {
	// Queue is the name according to the naming scheme, even on brokers that do not use it: a program that is tested in
	// memory must not fail on RabbitMQ.
	Queue string
	// Topic and Patterns that are read.
	Topic    string
	Patterns []string
	// Group of the reader; "" and brokers.DefaultGroup mean none.
	Group string
}

// Join records a subscription, or returns why it is not possible. leave removes it; calling it again does nothing.
func (r *Readers) Join(next Reader) (leave func(), err error) {
	if next.Group == brokers.DefaultGroup {
		next.Group = ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.queues[next.Queue]
	if have != nil {
		if err := have.shares(&next); err != nil {
			return nil, fmt.Errorf("%w: %w", brokers.ErrUnsupported, err)
		}
		have.count++
	} else {
		if r.queues == nil {
			r.queues = map[string]*reader{}
		}
		r.queues[next.Queue] = &reader{Reader: next, count: 1}
	}
	return sync.OnceFunc(func() { r.leave(next.Queue) }), nil
}

func (r *Readers) leave(queue string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.queues[queue]; have != nil {
		if have.count--; have.count == 0 {
			delete(r.queues, queue)
		}
	}
}

// shares returns why next cannot also read the queue.
func (have *reader) shares(next *Reader) error {
	switch {
	case have.Topic != next.Topic || !sameSet(have.Patterns, next.Patterns):
		return fmt.Errorf("queue %q is read for %s already, and each handler would get a part of the other's messages: "+
			"give each handler a group (WithGroup), or subscribe once, to one of them WithPatterns of the others",
			next.Queue, strings.Join(append([]string{have.Topic}, have.Patterns...), ", "))
	case have.Group != next.Group:
		return fmt.Errorf("queue %q is read by group %q already, and group %q would share its messages, because the naming "+
			"scheme has no {group} in the queue's name: choose a scheme that has, such as default, or put {group} into its "+
			"queue",
			next.Queue, have.Group, next.Group)
	case next.Group == "":
		return fmt.Errorf("topic %s is read by a handler without a group already, and both would share its messages: give "+
			"each "+
			"handler a group (WithGroup) to let both see every message, the same group to share them, or raise the "+
			"concurrency of one",
			next.Topic)
	}
	return nil
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}
