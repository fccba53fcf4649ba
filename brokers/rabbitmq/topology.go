package rabbitmq

import (
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
}

// Binding leads from an exchange to a queue, or with ToExchange to another exchange.
type Binding struct {
	Exchange   string
	Key        string
	To         string
	ToExchange bool
}

// String shows the binding as an arrow.
func (b Binding) String() string { return fmt.Sprintf("%s --%s--> %s", b.Exchange, b.Key, b.To) }

// Plan is what a consumer, or a producer of delayed messages, needs on the broker, in the order of declaration.
// Adopted queues and exchanges must exist and are never declared.
type Plan struct {
	Exchanges []Exchange
	Queues    []Queue
	Bindings  []Binding
	Adopted   []string // queues
}

// String shows the plan, one object a line, sorted arguments, as it would be declared.
func (p Plan) String() string {
	var out strings.Builder
	for _, name := range p.Adopted {
		fmt.Fprintf(&out, "queue    %s  (adopted: must exist, is not declared)\n", name)
	}
	for _, e := range p.Exchanges {
		fmt.Fprintf(&out, "exchange %s  %s%s\n", e.Name, e.Kind, formatArgs(e.Args))
	}
	for _, q := range p.Queues {
		fmt.Fprintf(&out, "queue    %s%s\n", q.Name, formatArgs(q.Args))
	}
	for _, b := range p.Bindings {
		fmt.Fprintf(&out, "binding  %s\n", b)
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

// merge adds what other has and p has not.
func (p *Plan) merge(other Plan) {
	for _, e := range other.Exchanges {
		if !slices.ContainsFunc(p.Exchanges, func(x Exchange) bool { return x.Name == e.Name }) {
			p.Exchanges = append(p.Exchanges, e)
		}
	}
	for _, q := range other.Queues {
		if !slices.ContainsFunc(p.Queues, func(x Queue) bool { return x.Name == q.Name }) {
			p.Queues = append(p.Queues, q)
		}
	}
	for _, b := range other.Bindings {
		if !slices.Contains(p.Bindings, b) {
			p.Bindings = append(p.Bindings, b)
		}
	}
	for _, name := range other.Adopted {
		if !slices.Contains(p.Adopted, name) {
			p.Adopted = append(p.Adopted, name)
		}
	}
}
