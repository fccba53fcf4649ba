package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// PlanConfig plans what the consumers of topics need under cfg, without a connection. cfg.Group, if set, is their
// group. Errors are those of cfg.
func PlanConfig(cfg brokers.Config, topics ...string) (Plan, error) {
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return Plan{}, err
	}
	d, err := newDesign(resolved)
	if err != nil {
		return Plan{}, fmt.Errorf("rabbitmq: %w", err)
	}
	return d.plan(resolved.Group, topics), nil
}

// Plan plans what the consumers of topics need, in the broker's own group.
func (b *Broker) Plan(topics ...string) Plan { return b.design.plan(b.cfg.Group, topics) }

// PlanDelayed plans where messages to topics wait for their first delivery. The first delayed publish to a topic declares
// it, once per process: Apply it beforehand where producers may not declare, or where a broker that is killed within
// seconds of that first publish is a worry (see How delay works).
func (b *Broker) PlanDelayed(topics ...string) Plan {
	var p Plan
	for _, topic := range topics {
		p.merge(b.design.first(topic))
	}
	return p
}

func (d *design) plan(group string, topics []string) Plan {
	var p Plan
	for _, topic := range topics {
		p.merge(d.consumer(topic, group, nil))
	}
	return p
}

// Apply declares p. Declaring what exists as planned changes nothing; what exists otherwise ends it with an
// *ArgumentError. Nothing is ever deleted or changed.
func (b *Broker) Apply(ctx context.Context, p Plan) error { return declare(ctx, b.publishing, p) }

// Finding is one difference between a plan and the broker.
type Finding struct {
	Kind string // queue, exchange or binding
	Name string
	// Missing says that there is no such object. Else Difference is how it differs.
	Missing    bool
	Difference *ArgumentError
}

// String says what was found.
func (f Finding) String() string {
	if f.Missing {
		return fmt.Sprintf("%s %q is missing", f.Kind, f.Name)
	}
	return f.Difference.Error()
}

// Check compares p with the broker and changes nothing. AMQP tells of one difference per queue or exchange, the first.
//
// Of bindings AMQP tells nothing, and a message sent to find out would arrive. They are compared when the URL says where
// the management API is (x-management), and else not at all: see [Broker.ChecksBindings]. Bindings that p does not have
// are no difference.
func (b *Broker) Check(ctx context.Context, p Plan) ([]Finding, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	d := &declarer{link: b.publishing}
	defer d.close(ctx)

	var findings []Finding
	compare := func(kind, name string, exists, declare func(*amqp.Channel) error) error {
		err := d.do(ctx, exists)
		if err == nil && declare != nil {
			err = d.do(ctx, declare) // it exists, so that nothing is created: the broker compares the arguments
		}
		var different *ArgumentError
		switch {
		case isNotFound(err):
			findings = append(findings, Finding{Kind: kind, Name: name, Missing: true})
		case errors.As(err, &different):
			findings = append(findings, Finding{Kind: kind, Name: name, Difference: different})
		case err != nil:
			return fmt.Errorf("rabbitmq: check %s %q: %w", kind, name, err)
		}
		return nil
	}
	for _, name := range p.Adopted {
		if err := compare("queue", name, passiveQueue(name), nil); err != nil {
			return nil, err
		}
	}
	for _, e := range p.Exchanges {
		exists := func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
		}
		if err := compare("exchange", e.Name, exists, e.declare); err != nil {
			return nil, err
		}
	}
	for _, q := range p.Queues {
		if err := compare("queue", q.Name, passiveQueue(q.Name), q.declare); err != nil {
			return nil, err
		}
	}
	missing, err := b.missingBindings(ctx, p)
	return append(findings, missing...), err
}

// ChecksBindings tells whether Check compares bindings.
func (b *Broker) ChecksBindings() bool { return b.design.management != nil }

func (b *Broker) missingBindings(ctx context.Context, p Plan) ([]Finding, error) {
	if !b.ChecksBindings() {
		return nil, nil
	}
	var findings []Finding
	there := map[string][]Binding{} // by exchange
	for _, want := range p.Bindings {
		have, asked := there[want.Exchange]
		if !asked {
			var err error
			if have, err = b.design.management.bindings(ctx, want.Exchange); err != nil {
				return nil, fmt.Errorf("rabbitmq: check the bindings of exchange %q: %w", want.Exchange, err)
			}
			there[want.Exchange] = have
		}
		if !slices.Contains(have, want) {
			findings = append(findings, Finding{Kind: "binding", Name: want.String(), Missing: true})
		}
	}
	return findings, nil
}
