package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// adapt fits missing objects to the adopted queues and exchanges: queues get the type of their neighbours, ways back
// avoid exchanges that would hand copies to others, and bindings get keys that their exchange understands. have has the
// types of the exchanges that are not of the planned type.
func (p *Plan) adapt(ctx context.Context, d *declarer, missing *Plan, have map[string]string) error {
	types := map[string]amqp.Table{} // of the queues that determine the type, by the consumer's queue
	for i, q := range missing.Queues {
		args := maps.Clone(q.Args)
		to, _ := args["x-dead-letter-exchange"].(string)
		copies := !slices.Contains([]string{"", amqp.ExchangeDirect, amqp.ExchangeTopic}, have[to])
		if copies && args["x-dead-letter-routing-key"] != nil {
			args["x-dead-letter-exchange"] = ""
		}
		if !p.design.typed {
			sibling, known := types[q.consumer]
			if !known {
				var err error
				if sibling, err = p.sibling(ctx, d, missing, q.consumer); err != nil {
					return err
				}
				types[q.consumer] = sibling
			}
			fitType(args, sibling)
		}
		missing.Queues[i].Args = args
	}
	var bindings []Binding
	for _, b := range missing.Bindings {
		for _, key := range p.keys(b, have[b.Exchange]) {
			b.Key = key
			bindings = append(bindings, b)
		}
	}
	missing.Bindings = bindings
	return nil
}

// sibling returns the arguments of the queue that determines the type of a consumer's queues: the consumer's own if it
// exists, otherwise the first of its queues that does; nil if none does, or its arguments are unknown.
func (p *Plan) sibling(ctx context.Context, d *declarer, missing *Plan, consumer string) (amqp.Table, error) {
	names := []string{consumer}
	for _, q := range p.Queues {
		if q.consumer == consumer {
			names = append(names, q.Name)
		}
	}
	for _, name := range names {
		absent := slices.ContainsFunc(missing.Queues, func(q Queue) bool { return q.Name == name })
		if name == "" || absent {
			continue
		}
		err := d.do(ctx, passiveQueue(name))
		if isNotFound(err) {
			continue
		}
		var args amqp.Table
		if err == nil {
			args, err = d.learn(ctx, Queue{Name: name, Args: amqp.Table{"x-queue-type": quorum}})
		}
		if isRefused(err) {
			return nil, nil // a user that may not declare it may not ask either
		}
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: look at queue %q: %w", name, err)
		}
		return args, nil
	}
	return nil, nil
}

// fitType gives args the type of the queue with the arguments sibling. Without a configured type, only quorum queues
// are planned.
func fitType(args, sibling amqp.Table) {
	kind := sibling["x-queue-type"]
	if sibling == nil || kind == quorum {
		return
	}
	for _, of := range []string{"x-queue-type", "x-dead-letter-strategy", "x-overflow", "x-delivery-limit"} {
		delete(args, of)
	}
	if kind != nil { // a client that declares it again repeats this argument, as it does the others
		args["x-queue-type"] = kind
	}
}

// keys are the keys to bind b with, to an exchange of type have, which is "" for the planned type. A dead letter
// exchange is planned as a fanout, whose bindings need no key.
func (p *Plan) keys(b Binding, have string) []string {
	switch {
	case b.Key != "" || have == "" || have == amqp.ExchangeFanout:
		return []string{b.Key}
	case have == amqp.ExchangeTopic:
		return []string{"#"}
	}
	var keys []string
	for _, q := range p.Queues {
		if q.Args["x-dead-letter-exchange"] != b.Exchange {
			continue
		}
		keys = append(keys, q.Name) // of messages that came through the default exchange, as retries do
		for _, into := range p.Bindings {
			if into.To == q.Name && !brokers.IsPattern(into.Key) {
				keys = append(keys, into.Key)
			}
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// dryRun checks whether the user may create the missing objects, and creates nothing: RabbitMQ checks the permissions
// for each declaration before it finds that it is impossible.
func (p *Plan) dryRun(ctx context.Context, d *declarer) error {
	if len(p.Exchanges)+len(p.Queues) == 0 || len(p.Exchanges)+len(p.Queues)+len(p.Bindings) == 1 {
		return nil
	}
	for _, e := range p.Exchanges {
		err := d.do(ctx, Exchange{e.Name, e.Kind, impossible(e.Args, "alternate-exchange")}.declare)
		if err := rehearsed(err, "alternate-exchange"); err != nil {
			return fmt.Errorf("rabbitmq: declare exchange %q: %w", e.Name, pluginHint(e, err))
		}
	}
	for _, q := range p.Queues {
		err := d.do(ctx, Queue{Name: q.Name, Args: impossible(q.Args, "x-max-length")}.declare)
		if err := rehearsed(err, "x-max-length"); err != nil {
			return fmt.Errorf("rabbitmq: declare queue %q: %w", q.Name, err)
		}
	}
	for _, b := range p.Bindings {
		to := Exchange{Name: b.To} // permissions depend on the name only, whether a queue's or an exchange's
		if err := d.do(ctx, to.exists); !isNotFound(err) {
			continue
		}
		b.ToExchange = true
		err := d.do(ctx, b.declare)
		if isRefused(err) {
			b.ToExchange = false
			return fmt.Errorf("rabbitmq: bind %q to exchange %q with key %q: %w", b.To, b.Exchange, b.Key, bindHint(b, err))
		}
	}
	return nil
}

// impossible returns args with a value that no declaration accepts.
func impossible(args amqp.Table, argument string) amqp.Table {
	args = maps.Clone(args)
	if args == nil {
		args = amqp.Table{}
	}
	args[argument] = true
	return args
}

// rehearsed returns why an impossible declaration was refused, unless it was for being impossible.
func rehearsed(err error, argument string) error {
	refusal, ok := errors.AsType[*amqp.Error](err)
	different, exists := errors.AsType[*ArgumentError](err)
	switch {
	case ok && refusal.Code == amqp.PreconditionFailed && strings.Contains(refusal.Reason, "'"+argument+"'"):
		return nil
	case exists && different.Name != "": // created by another process meanwhile, and the declaration compares it
		return nil
	}
	return err
}
