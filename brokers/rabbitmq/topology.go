package rabbitmq

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Exchange is a durable exchange.
type Exchange struct {
	Name string
	Kind string // direct, topic, fanout, x-delayed-message
	Args amqp.Table
}

// Queue is a durable queue.
type Queue struct {
	Name string
	Args amqp.Table

	consumer string // the queue of the consumer it belongs to
}

// Binding routes from an exchange to a queue or, with ToExchange, to another exchange.
type Binding struct {
	Exchange   string
	Key        string
	To         string
	ToExchange bool
}

// String shows the binding as an arrow.
func (b Binding) String() string { return fmt.Sprintf("%s --%s--> %s", b.Exchange, b.Key, b.To) }

// Plan lists what a consumer, or a producer of delayed messages, needs on the broker, in the order of declaration.
type Plan struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
	// Adopted queues must exist and are never declared.
	Adopted []string
	// Later are delay queues that are declared when a message first waits in them. They must exist beforehand for a
	// program whose user may not declare: see [Plan.All].
	Later []Queue

	design      *design      // nil for a plan that a program has written itself
	returnPaths []returnPath // of the wait queues among Queues, Later and Adopted
}

// returnPath is how messages return from a wait queue.
type returnPath struct {
	queue, to  string
	key        string // the key they were published with
	perMessage bool   // each message has its own time to live
}

// adopts reports whether existing objects are used as they are.
func (p Plan) adopts() bool { return p.design != nil && p.design.declare == declareAdopt }

// adopted are the queues that must exist.
func (p Plan) adopted() []Queue {
	list := make([]Queue, len(p.Adopted))
	for i, name := range p.Adopted {
		list[i].Name = name
	}
	return list
}

// empty reports whether there is nothing to declare.
func (p Plan) empty() bool { return len(p.Exchanges)+len(p.Queues)+len(p.Bindings)+len(p.Adopted) == 0 }

// routing reduces p to exchanges and bindings: a queue is declared again by its consumer when RabbitMQ reports its
// deletion. RabbitMQ 3.10 does not report it, and forgets the consumer, if a queue of that name is recreated at once.
func (p Plan) routing() Plan {
	return Plan{Exchanges: p.Exchanges, Bindings: p.Bindings, design: p.design}
}

// All returns the plan with the queues of Later added to those to be declared.
func (p Plan) All() Plan {
	p.Queues, p.Later = slices.Concat(p.Queues, p.Later), nil
	return p
}

// String shows the plan as it would be declared, one object per line, with sorted arguments.
func (p Plan) String() string {
	var out strings.Builder
	for _, name := range p.Adopted {
		fmt.Fprintf(&out, "queue    %s  (adopted: must exist, is not declared)\n", name)
	}
	adopts := ""
	if p.adopts() {
		adopts = "  (if missing; otherwise as it is)"
	}
	for _, e := range p.Exchanges {
		fmt.Fprintf(&out, "exchange %s  %s%s%s\n", e.Name, e.Kind, formatArgs(e.Args), adopts)
	}
	for _, q := range p.Queues {
		fmt.Fprintf(&out, "queue    %s%s%s\n", q.Name, formatArgs(q.Args), adopts)
	}
	for _, b := range p.Bindings {
		fmt.Fprintf(&out, "binding  %s\n", b)
	}
	for _, q := range p.Later {
		fmt.Fprintf(&out, "queue    %s%s  (declared when first needed)\n", q.Name, formatArgs(q.Args))
	}
	return out.String()
}

func formatArgs(args amqp.Table) string {
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(args)) {
		fmt.Fprintf(&out, "  %s=%v", key, args[key])
	}
	return out.String()
}

// merge adds the objects of other that p does not have.
func (p *Plan) merge(other Plan) {
	p.design = cmp.Or(p.design, other.design)
	p.returnPaths = appendMissing(p.returnPaths, other.returnPaths, func(w returnPath) returnPath { return w })
	p.Exchanges = appendMissing(p.Exchanges, other.Exchanges, func(e Exchange) string { return e.Name })
	p.Queues = appendMissing(p.Queues, other.Queues, queueName)
	p.Later = appendMissing(p.Later, other.Later, queueName)
	p.Bindings = appendMissing(p.Bindings, other.Bindings, func(b Binding) Binding { return b })
	p.Adopted = appendMissing(p.Adopted, other.Adopted, func(name string) string { return name })
}

func queueName(q Queue) string { return q.Name }

// appendMissing appends those of more whose id is not in list yet.
func appendMissing[T any, ID comparable](list, more []T, id func(T) ID) []T {
	for _, x := range more {
		if !slices.ContainsFunc(list, func(have T) bool { return id(have) == id(x) }) {
			list = append(list, x)
		}
	}
	return list
}
