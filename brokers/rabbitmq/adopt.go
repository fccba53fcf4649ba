package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
)

// NoWayBackError means that messages would wait forever: nothing leads from their wait queue back to the consumer's.
type NoWayBackError struct {
	Queue  string // in which retries would wait
	To     string // the consumer's queue
	Why    string // what is missing, or routed elsewhere
	Remedy string // a command, or a parameter of the URL
}

// Error gives the reason and the remedy.
func (e *NoWayBackError) Error() string {
	return fmt.Sprintf("rabbitmq: nothing comes back from queue %q to %q: %s. %s", e.Queue, e.To, e.Why, e.Remedy)
}

// compare compares p with the existing objects without creating anything. It returns what is left to declare: the
// missing objects and all bindings, which AMQP cannot look up.
func (p *Plan) compare(ctx context.Context, d *declarer) (Plan, error) {
	missing := Plan{Bindings: slices.Clone(p.Bindings)}
	have := map[string]string{} // the types of exchanges that are not of the planned type
	for _, e := range p.Exchanges {
		kind, err := p.compareExchange(ctx, d, e)
		switch {
		case isNotFound(err):
			missing.Exchanges = append(missing.Exchanges, e)
		case err != nil:
			return missing, err
		default:
			have[e.Name] = kind
		}
	}
	for _, q := range p.Queues {
		more, err := p.compareQueue(ctx, d, q)
		switch {
		case isNotFound(err):
			missing.Queues = append(missing.Queues, q)
		case err != nil:
			return missing, err
		default:
			missing.Bindings = append(missing.Bindings, more...)
		}
	}
	for _, q := range p.adopted() {
		if _, err := p.compareQueue(ctx, d, q); isNotFound(err) {
			return missing, fmt.Errorf("rabbitmq: queue %q does not exist, and x-declare keeps it from being declared: "+
				"create it, correct the name, or set x-declare=all: %w", q.Name, err)
		} else if err != nil {
			return missing, err
		}
	}
	if p.adopts() {
		return missing, p.adapt(ctx, d, &missing, have)
	}
	return missing, nil
}

func (p *Plan) returnPathOf(queue string) (returnPath, bool) {
	i := slices.IndexFunc(p.returnPaths, func(w returnPath) bool { return w.queue == queue })
	if i < 0 {
		return returnPath{}, false
	}
	return p.returnPaths[i], true
}

// compareExchange compares the existing exchange with the planned one. It returns the existing type if it differs. If
// there is no such exchange, isNotFound is true for the error.
func (p *Plan) compareExchange(ctx context.Context, d *declarer, e Exchange) (have string, err error) {
	if err := d.do(ctx, e.exists); err != nil {
		return "", fmt.Errorf("rabbitmq: look for exchange %q: %w", e.Name, err)
	}
	if p.adopts() && len(p.Queues) == 0 {
		return "", nil // checked when its consumer subscribed
	}
	err = d.declare(ctx, e)
	different, ok := errors.AsType[*ArgumentError](err)
	switch {
	case !ok || !p.adopts():
		return "", err
	case different.Argument != "type":
		return "", nil
	case different.Have == amqp.ExchangeDirect:
		for _, b := range p.Bindings {
			if b.Exchange == e.Name && !b.ToExchange && brokers.IsPattern(b.Key) {
				return "", fmt.Errorf("rabbitmq: exchange %q is of type direct, which does not support patterns: "+
					"subscribe to each event that %q stands for by its name", e.Name, b.Key)
			}
		}
	}
	return different.Have, nil
}

// compareQueue compares the existing queue with the planned one, and records the arguments of one that is used as it
// is. For a wait queue it returns the bindings that lead back to the consumer's queue. If there is no such queue,
// isNotFound is true for the error.
func (p *Plan) compareQueue(ctx context.Context, d *declarer, q Queue) ([]Binding, error) {
	if err := d.do(ctx, q.exists); err != nil {
		return nil, fmt.Errorf("rabbitmq: look for queue %q: %w", q.Name, err)
	}
	path, waits := p.returnPathOf(q.Name)
	ours := !p.adopts() && !slices.Contains(p.Adopted, q.Name)
	if ours && (!waits || !path.perMessage) {
		return nil, d.declare(ctx, q)
	}
	if !waits {
		return nil, nil
	}
	args, err := p.design.look(ctx, d, q)
	if isRefused(err) {
		return nil, nil // a user who may not declare it cannot see its arguments: the first retry reports a fault
	}
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: look at queue %q: %w", q.Name, err)
	}
	if ours { // only its time to live may differ
		want := Queue{Name: q.Name, Args: maps.Clone(q.Args)}
		if ttl, has := args["x-message-ttl"]; has {
			want.Args["x-message-ttl"] = ttl
		}
		if err := d.declare(ctx, want); err != nil {
			return nil, err
		}
	}
	full, _, unseen := p.design.withPolicies(ctx, q, args)
	bindings, err := p.returnBindings(path, full)
	if err != nil && unseen != nil { // a policy may lead back
		err = unseen
	}
	return bindings, err
}

// refusedFor is how long a refused look is not repeated: it costs a channel, and lines in RabbitMQ's log. But the
// permission may be granted while the process runs.
const refusedFor = 10 * time.Minute

var errRefused = &amqp.Error{Code: amqp.AccessRefused, Reason: "a look at the queue was refused a moment ago"}

// look returns and records the arguments of an existing queue, as far as they can be seen: those of the last look if
// this one is refused, and nil if all were.
func (d *design) look(ctx context.Context, on *declarer, q Queue) (amqp.Table, error) {
	known, _ := d.declared.Load(q.Name)
	seen, _ := known.(amqp.Table)
	if seen != nil { // each that differs costs a channel, and lines in RabbitMQ's log
		q.Args = seen
	}
	if last, ok := d.refused.Load(q.Name); ok && time.Since(last.(time.Time)) < refusedFor {
		return seen, errRefused
	}
	args, err := on.readArguments(ctx, q)
	if isRefused(err) {
		d.refused.Store(q.Name, time.Now())
		return seen, err
	}
	d.declared.Store(q.Name, args)
	return args, err
}

// withPolicies returns and records the arguments of a queue and what policies set, if the management API is configured,
// and what is harmful about them. With an error the policies are those that were seen before, or none.
func (d *design) withPolicies(ctx context.Context, q Queue, args amqp.Table) (full amqp.Table, bad []error, err error) {
	var policy queuePolicy
	if d.management != nil {
		policy, err = d.management.lastPolicy(ctx, q.Name)
	}
	full = policy.over(args)
	full["x-expires"] = args["x-expires"] // one of a policy refuses no queue: it can be corrected
	d.known.Store(q.Name, full)
	return full, harms(q, args, policy), err
}

// returnBindings returns the bindings that lead from a wait queue with these arguments to its consumer's queue. If none
// can, it returns a *NoWayBackError.
func (p *Plan) returnBindings(path returnPath, args amqp.Table) ([]Binding, error) {
	exchange, deadLetters := args["x-dead-letter-exchange"].(string)
	key, named := args["x-dead-letter-routing-key"].(string)
	if !named {
		key = path.key
	}
	why := fmt.Sprintf("it dead-letters to queue %q", key)
	switch {
	case mayExpire(args):
		why = fmt.Sprintf("it has x-expires=%v, and RabbitMQ may delete it with the messages in it", args["x-expires"])
	case !deadLetters:
		why = "it has no x-dead-letter-exchange"
	case exchange != "":
		return []Binding{{Exchange: exchange, Key: key, To: path.to}}, nil
	case key == path.to:
		return nil, nil
	}
	return nil, &NoWayBackError{path.queue, path.to, why, p.remedy(path, args)}
}

// mayExpire reports whether RabbitMQ may delete a queue with these arguments while a message waits in it. Publishing
// does not renew the lease. keepDeclared does, if it is that of a classic queue, every checkEvery and until the process
// ends.
func mayExpire(args amqp.Table) bool {
	lease, leased := integer(args["x-expires"])
	longest, bounded := integer(args["x-message-ttl"])
	return leased && (args["x-queue-type"] == quorum || !bounded || lease < longest+2*checkEvery.Milliseconds())
}

// remedy explains how retries can work alongside a wait queue that cannot be changed. Where an exchange leads to it,
// another wait queue would be bound with the same key, and both would get every reject and retry. And where the queue
// has both arguments, no policy overrides them.
func (p *Plan) remedy(path returnPath, args amqp.Table) string {
	see := "put the management API into the URL (management=http://host:15672) so that we see the policy"
	if p.design.management != nil {
		see = "start again when the management API shows it, up to five seconds after it was set"
	}
	cycle := p.design.transport == transportReject && p.design.namesOf(path.key, path.to).RetryExchange != ""
	switch {
	case !cycle && !slices.Contains(p.Adopted, path.queue):
		return fmt.Sprintf("Put retry=%s into the URL: retries then wait in %q, which is created, and this queue stays "+
			"unchanged. If a policy leads them back, %s", url.QueryEscape("{queue}_wait"), path.to+"_wait", see)
	case mayExpire(args), args["x-dead-letter-exchange"] != nil && args["x-dead-letter-routing-key"] != nil:
		return fmt.Sprintf("Correct its policy, or delete it when it is empty and declare it with "+
			"x-dead-letter-exchange=\"\" and x-dead-letter-routing-key=%q", path.to)
	}
	return fmt.Sprintf("rabbitmqctl set_policy --apply-to queues %s '^%s$' "+
		"'{\"dead-letter-exchange\":\"\",\"dead-letter-routing-key\":%q}' leads them back; with it, or if a policy does so "+
		"already, %s", strings.ReplaceAll(path.queue, " ", "-"), path.queue, path.to, see)
}

// maxArguments bounds how many arguments of a queue are read. RabbitMQ has fewer.
const maxArguments = 24

// readArguments returns the arguments of an existing queue. AMQP has no request for them, but RabbitMQ refuses a
// declaration with other arguments, and names the first that differs and its value.
func (d *declarer) readArguments(ctx context.Context, q Queue) (amqp.Table, error) {
	args := amqp.Table{}
	maps.Copy(args, q.Args)
	durable, autoDelete := true, false
	for range maxArguments {
		err := d.do(ctx, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.Name, durable, autoDelete, false, false, args)
			return err
		})
		different, ok := errors.AsType[*ArgumentError](err)
		if !ok {
			return args, err
		}
		switch different.Argument {
		case "durable":
			durable = different.Have == "true"
		case "auto_delete":
			autoDelete = different.Have == "true"
		case "exclusive":
			return args, err
		default:
			if _, sent := args[different.Argument]; different.Have == unseen && !sent { // it is taken to be the planned one
				if planned, ok := q.Args[different.Argument]; ok {
					args[different.Argument] = planned
				}
				return args, nil
			}
			different.applyTo(args)
		}
	}
	return args, nil
}

// applyTo sets the argument in args to the queue's value.
func (e *ArgumentError) applyTo(args amqp.Table) {
	number, err := strconv.ParseInt(e.Have, 10, 64)
	_, text := args[e.Argument].(string) // RabbitMQ 3 does not name the types of two different values
	switch {
	case e.Have == "none", e.Have == unseen: // the explanation without ours is shorter
		delete(args, e.Argument)
	case e.Have == `""`:
		args[e.Argument] = ""
	case e.haveType == "bool":
		args[e.Argument] = e.Have == "true"
	case e.haveType == "longstr" || e.haveType == "" && text || err != nil:
		args[e.Argument] = e.Have
	default:
		args[e.Argument] = number
	}
}

// adapt fits missing objects to the adopted ones: queues get the type of the consumer's other queues, dead-lettering
// bypasses exchanges that would send copies elsewhere, and bindings get keys that suit the type of their exchange. have
// holds the types of the exchanges that are not of the planned type.
func (p *Plan) adapt(ctx context.Context, d *declarer, missing *Plan, have map[string]string) error {
	for i, q := range missing.Queues {
		args := maps.Clone(q.Args)
		to, _ := args["x-dead-letter-exchange"].(string)
		copies := !slices.Contains([]string{"", amqp.ExchangeDirect, amqp.ExchangeTopic}, have[to])
		if copies && args["x-dead-letter-routing-key"] != nil {
			args["x-dead-letter-exchange"] = ""
		}
		if !p.design.typed {
			sibling, err := p.sibling(ctx, d, missing, q.consumer)
			if err != nil {
				return err
			}
			fitType(args, sibling)
		}
		missing.Queues[i].Args = args
	}
	var bindings []Binding
	for _, b := range missing.Bindings {
		for _, key := range p.bindingKeys(b, have[b.Exchange]) {
			b.Key = key
			bindings = append(bindings, b)
		}
	}
	missing.Bindings = bindings
	return nil
}

// sibling returns the arguments of the queue that determines the type of a consumer's queues: the queue it reads, or
// the first of the others that exists. It returns nil if none exists or the arguments cannot be seen.
func (p *Plan) sibling(ctx context.Context, d *declarer, missing *Plan, consumer string) (amqp.Table, error) {
	for _, q := range slices.Concat([]Queue{{Name: consumer, consumer: consumer}}, p.Queues) {
		absent := slices.ContainsFunc(missing.Queues, func(m Queue) bool { return m.Name == q.Name })
		if q.Name == "" || q.consumer != consumer || absent {
			continue
		}
		var args amqp.Table
		err := d.do(ctx, q.exists)
		if err == nil {
			args, err = d.readArguments(ctx, Queue{Name: q.Name, Args: amqp.Table{"x-queue-type": quorum}})
		}
		switch {
		case isNotFound(err):
			continue
		case isRefused(err):
			return nil, nil // a user who may not declare it cannot see its arguments
		case err != nil:
			return nil, fmt.Errorf("rabbitmq: look at queue %q: %w", q.Name, err)
		}
		return args, nil
	}
	return nil, nil
}

// fitType changes args, which are those of a quorum queue, to the type of the queue with the arguments sibling.
func fitType(args, sibling amqp.Table) {
	kind := sibling["x-queue-type"]
	if sibling == nil || kind == quorum {
		return
	}
	for _, of := range []string{"x-queue-type", "x-dead-letter-strategy", "x-overflow", "x-delivery-limit"} {
		delete(args, of)
	}
	if kind != nil { // if the sibling was declared with the argument, later declarations of this queue will have it too
		args["x-queue-type"] = kind
	}
}

// bindingKeys returns the keys for b on an exchange of type have; "" stands for the planned type. A dead letter
// exchange is planned as a fanout, whose bindings need no key.
func (p *Plan) bindingKeys(b Binding, have string) []string {
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
