package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/redrive-go/redrive/brokers"
)

// PlanConfig plans what the consumers of topics need under cfg, without a connection. cfg.Group, if set, is their
// group. It returns the errors of cfg.
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
func (b *Broker) Plan(topics ...string) Plan {
	return b.transport.design.plan(b.Config().Group, topics)
}

// PlanDelayed plans the queues in which messages to topics wait for their first delivery. The first delayed publish to
// a topic declares them, once per process: Apply the plan beforehand if producers may not declare, or if you worry
// about a broker that is killed within seconds of that first publish (see How delay works).
func (b *Broker) PlanDelayed(topics ...string) Plan {
	var p Plan
	for _, topic := range topics {
		p.merge(b.transport.design.first(topic))
	}
	return p
}

// Apply declares p. Declaring an object that exists as planned changes nothing; one that differs ends it with an
// *ArgumentError. Nothing is ever deleted or changed.
func (b *Broker) Apply(ctx context.Context, p Plan) error {
	return declare(ctx, b.transport.publishing, p)
}

// Finding is one difference between a plan and the broker.
type Finding struct {
	Kind string // queue, exchange or binding
	Name string
	// Missing means that there is no such object.
	Missing bool
	// Fault is how an existing object differs, such as an *[ArgumentError], or why it cannot be used as it is, such as a
	// *[NoWayBackError].
	Fault error
}

// String describes the finding.
func (f Finding) String() string {
	if f.Missing {
		return fmt.Sprintf("%s %q is missing", f.Kind, f.Name)
	}
	return f.Fault.Error()
}

// ChecksBindings reports whether Check compares bindings and policies.
func (b *Broker) ChecksBindings() bool { return b.transport.design.management != nil }

// Check compares p with the broker and changes nothing. AMQP reports one difference per queue or exchange, the first.
//
// AMQP does not show bindings and policies. They are only compared if the URL names the management API (x-management):
// see [Broker.ChecksBindings]. Bindings that are not in p are no difference. A policy on one of our queues is one if it
// makes the queue lose or misroute messages. Queues that are declared when first needed may be missing, but must not
// differ.
func (b *Broker) Check(ctx context.Context, p Plan) ([]Finding, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	d := &declarer{link: b.transport.publishing}
	defer d.close(ctx)

	var findings []Finding
	for _, e := range p.Exchanges {
		_, err := p.takeExchange(ctx, d, e)
		if findings, err = withFinding(findings, "exchange", e.Name, err); err != nil {
			return nil, err
		}
	}
	needed := slices.Concat(p.adopted(), p.Queues)
	for i, q := range slices.Concat(needed, p.Later) {
		_, err := p.takeQueue(ctx, d, q) // one that exists is compared, and nothing is created
		if i >= len(needed) && isNotFound(err) {
			continue
		}
		if findings, err = withFinding(findings, "queue", q.Name, err); err != nil {
			return nil, err
		}
	}
	if !b.ChecksBindings() {
		return findings, nil
	}
	missing, err := b.missingBindings(ctx, p)
	if err != nil {
		return nil, err
	}
	policies, err := b.badPolicies(ctx, p)
	return slices.Concat(findings, missing, policies), err
}

// withFinding adds what the error of looking at an object says about it. Errors unrelated to the object are returned.
func withFinding(findings []Finding, kind, name string, err error) ([]Finding, error) {
	var different *ArgumentError
	var stays *NoWayBackError
	switch {
	case err == nil:
		return findings, nil
	case isNotFound(err):
		return append(findings, Finding{Kind: kind, Name: name, Missing: true}), nil
	case errors.As(err, &different):
		return append(findings, Finding{Kind: kind, Name: name, Fault: different}), nil
	case errors.As(err, &stays):
		return append(findings, Finding{Kind: kind, Name: name, Fault: stays}), nil
	}
	return nil, fmt.Errorf("rabbitmq: check %s %q: %w", kind, name, err)
}

func (b *Broker) missingBindings(ctx context.Context, p Plan) ([]Finding, error) {
	var findings []Finding
	there := map[string][]Binding{} // by exchange
	for _, want := range p.Bindings {
		have, asked := there[want.Exchange]
		if !asked {
			var err error
			if have, err = b.transport.design.management.bindings(ctx, want.Exchange); err != nil {
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

// badPolicies checks the effect of policies on the queues in p. A policy cannot override our arguments, except for
// limits, of which the lower one applies; it adds those that we do not set.
func (b *Broker) badPolicies(ctx context.Context, p Plan) ([]Finding, error) {
	var findings []Finding
	for _, q := range slices.Concat(p.Queues, p.Later) {
		policy, err := b.transport.design.management.policy(ctx, q.Name)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: check the policies of queue %q: %w", q.Name, err)
		}
		for _, key := range slices.Sorted(maps.Keys(policy.Definition)) {
			if value := policy.Definition[key]; harmful(q, key, value) {
				want, set := q.Args["x-"+key]
				if !set {
					want = "none"
				}
				findings = append(findings, Finding{Kind: "queue", Name: q.Name, Fault: fmt.Errorf("queue %q: policy %q sets "+
					"%s=%v, which can lose messages or send them elsewhere; want %v: change the policy's pattern, or give these "+
					"queues one with a higher priority", q.Name, policy.Name, key, value, want)})
			}
		}
	}
	return findings, nil
}

// harmful reports whether a policy's key with that value takes effect on q and loses or misroutes messages.
func harmful(q Queue, key string, value any) bool {
	have, set := q.Args["x-"+key]
	switch key {
	case "expires", "max-length", "max-length-bytes": // deletes the queue with its messages, or the oldest of them
		return true
	case "message-ttl", "delivery-limit":
		limit, isNumber := integer(value)
		most, ours := integer(have)
		return !set || !isNumber || !ours || limit < most
	case "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow":
		return !set // the argument of the queue wins
	}
	return false
}
