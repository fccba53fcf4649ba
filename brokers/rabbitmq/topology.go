package rabbitmq

import (
	"cmp"
	"fmt"
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

	design *design      // nil for a plan that a program has made up
	ways   []returnPath // of the wait queues among Queues, Later and Adopted
}

// adopts reports whether existing objects are used as they are.
func (p Plan) adopts() bool { return p.design != nil && p.design.declare == declareAdopt }

// returnPath is how messages return from a wait queue.
type returnPath struct {
	queue, to string
	key       string // the key they were published with
	own       bool   // they expire by their own time to live
}

// adopted are the queues that must exist.
func (p Plan) adopted() []Queue {
	list := make([]Queue, len(p.Adopted))
	for i, name := range p.Adopted {
		list[i].Name = name
	}
	return list
}

// All returns the plan with the queues of Later added to those to be declared.
func (p Plan) All() Plan {
	all := Plan{}
	all.merge(p)
	all.Queues, all.Later = append(all.Queues, all.Later...), nil
	return all
}

// String shows the plan as it would be declared, one object per line, with sorted arguments.
func (p Plan) String() string {
	var out strings.Builder
	for _, name := range p.Adopted {
		fmt.Fprintf(&out, "queue    %s  (adopted: must exist, is not declared)\n", name)
	}
	taken := ""
	if p.adopts() {
		taken = "  (if missing; otherwise as it is)"
	}
	for _, e := range p.Exchanges {
		fmt.Fprintf(&out, "exchange %s  %s%s%s\n", e.Name, e.Kind, formatArgs(e.Args), taken)
	}
	for _, q := range p.Queues {
		fmt.Fprintf(&out, "queue    %s%s%s\n", q.Name, formatArgs(q.Args), taken)
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
	for _, key := range sortedKeys(args) {
		fmt.Fprintf(&out, "  %s=%v", key, args[key])
	}
	return out.String()
}

// merge adds the objects of other that p does not have.
func (p *Plan) merge(other Plan) {
	p.design = cmp.Or(p.design, other.design)
	p.ways = union(p.ways, other.ways, func(a, b returnPath) bool { return a == b })
	p.Exchanges = union(p.Exchanges, other.Exchanges, func(a, b Exchange) bool { return a.Name == b.Name })
	p.Queues = union(p.Queues, other.Queues, sameQueue)
	p.Later = union(p.Later, other.Later, sameQueue)
	p.Bindings = union(p.Bindings, other.Bindings, func(a, b Binding) bool { return a == b })
	p.Adopted = union(p.Adopted, other.Adopted, func(a, b string) bool { return a == b })
}

func sameQueue(a, b Queue) bool { return a.Name == b.Name }

// union appends those of more that are not in list.
func union[T any](list, more []T, same func(a, b T) bool) []T {
	for _, x := range more {
		if !slices.ContainsFunc(list, func(have T) bool { return same(have, x) }) {
			list = append(list, x)
		}
	}
	return list
}
