package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// declareTimeout bounds the declaration of one consumer's topology. RabbitMQ takes about 10 ms for a quorum queue, and
// forever for one that has lost its leader.
const declareTimeout = 30 * time.Second

// ArgumentError means that a queue or exchange exists and differs from the planned declaration. RabbitMQ never changes
// an existing one.
type ArgumentError struct {
	Kind     string // queue or exchange
	Name     string
	Argument string // x-message-ttl, type, durable, ...
	Want     string // what would be declared; none if the argument would not be given, "" if it is empty
	Have     string // what the broker has, likewise

	haveType string // of AMQP, such as long or longstr; "" if the argument is absent
}

// Error names the object, the argument, both values and the remedies.
func (e *ArgumentError) Error() string {
	return fmt.Sprintf("rabbitmq: %s %q exists with %s=%s, and would be declared with %s=%s; RabbitMQ never changes an "+
		"existing %s. "+
		"Either adopt it as it is with x-declare=adopt (or x-declare=none); give it another name in the naming scheme "+
		"and let the old one drain; "+
		"set the argument by a policy (rabbitmqctl set_policy) and adopt it; or delete it when it is empty",
		e.Kind, e.Name, e.Argument, e.Have, e.Argument, e.Want, e.Kind)
}

// inequivalent is how RabbitMQ 3 and 4 explain PRECONDITION_FAILED:
//
//	inequivalent arg 'x-message-ttl' for queue 'q' in vhost '/':
//	received the value '5000' of type 'long' but current is none
var inequivalent = regexp.MustCompile(`inequivalent arg '([^']*)' for (queue|exchange) '(.*)' in vhost '.*': ` +
	`received (?:the value )?(?:'(.*?)'|none)(?: of type '[^']*')? but current is (?:the value )?(?:'(.*?)'|none)(?: ` +
	`of type '([^']*)')?$`)

// cutOff is how RabbitMQ ends an explanation that is longer than AMQP allows: the values are not, or not all, in it.
var cutOff = regexp.MustCompile(`inequivalent arg '([^']*)' for queue '([^']*).*\.\.\.$`)

const unseen = "..."

// explain turns RabbitMQ's refusal of a declaration into an ArgumentError.
func explain(err error) error {
	refusal, ok := errors.AsType[*amqp.Error](err)
	if !ok || refusal.Code != amqp.PreconditionFailed {
		return err
	}
	m := inequivalent.FindStringSubmatchIndex(refusal.Reason)
	if m == nil {
		if cut := cutOff.FindStringSubmatch(refusal.Reason); cut != nil {
			return &ArgumentError{Argument: cut[1], Kind: "queue", Name: cut[2], Want: unseen, Have: unseen}
		}
		return err
	}
	group := func(n int) string {
		switch from, to := m[2*n], m[2*n+1]; from {
		case -1:
			return "none"
		case to:
			return `""`
		default:
			return refusal.Reason[from:to]
		}
	}
	haveType := group(6)
	if haveType == "none" {
		haveType = ""
	}
	return &ArgumentError{
		Argument: group(1), Kind: group(2), Name: group(3), Want: group(4), Have: group(5), haveType: haveType,
	}
}

// declarer runs AMQP methods that may be refused. Each refusal ends its channel.
type declarer struct {
	link *connection
	ch   *amqp.Channel
	conn *amqp.Connection // of ch
}

// do repeats the method if its connection was lost and another one is there: a retry that cannot declare its queue
// fails, and its handler may run again.
func (d *declarer) do(ctx context.Context, method func(ch *amqp.Channel) error) (err error) {
	for range 2 {
		if d.ch == nil || d.ch.IsClosed() {
			d.ch, d.conn, _, err = d.link.channel(ctx)
		}
		if ch := d.ch; ch != nil {
			err = call(ctx, d.conn, func() error { return method(ch) }, ch.Close)
		}
		lost := errors.Is(err, driver.ErrTemporary) && (d.ch == nil || d.conn.IsClosed())
		if lost || errors.Is(err, errNoAnswer) {
			d.ch = nil
		}
		if !lost || d.link.connectOnce(ctx) != nil {
			break
		}
	}
	return explain(err)
}

// close also closes if ctx has ended.
func (d *declarer) close(ctx context.Context) {
	if d.ch != nil && !d.ch.IsClosed() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = d.do(ctx, (*amqp.Channel).Close) // nothing depends on it
	}
}

// declarable is an Exchange, a Queue or a Binding.
type declarable interface {
	declare(ch *amqp.Channel) error
	refused(err error) error // names the object, and what to do
}

func (d *declarer) declare(ctx context.Context, o declarable) error {
	if err := d.do(ctx, o.declare); err != nil {
		return o.refused(err)
	}
	return nil
}

func (e Exchange) declare(ch *amqp.Channel) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Args)
}

func (e Exchange) exists(ch *amqp.Channel) error {
	return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
}

func (e Exchange) refused(err error) error {
	return fmt.Errorf("rabbitmq: declare exchange %q: %w", e.Name, pluginHint(e, err))
}

func (q Queue) declare(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args)
	return err
}

func (q Queue) exists(ch *amqp.Channel) error {
	_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
	return err
}

func (q Queue) refused(err error) error {
	return fmt.Errorf("rabbitmq: declare queue %q: %w", q.Name, err)
}

func (b Binding) declare(ch *amqp.Channel) error {
	if b.ToExchange {
		return ch.ExchangeBind(b.To, b.Key, b.Exchange, false, nil)
	}
	return ch.QueueBind(b.To, b.Key, b.Exchange, false, nil)
}

func (b Binding) refused(err error) error {
	if isRefused(err) && !b.ToExchange {
		err = fmt.Errorf("%w: the user lacks the permission: run as one that has it, "+
			"rabbitmqadmin declare binding source=%q destination=%q routing_key=%q", err, b.Exchange, b.To, b.Key)
	}
	return fmt.Errorf("rabbitmq: bind %q to exchange %q with key %q: %w", b.To, b.Exchange, b.Key, err)
}

// declare creates p. It looks first and creates nothing if anything is in the way, because objects left by a failed
// start would block the next one; after that it stops at the first fault.
func declare(ctx context.Context, l *connection, p Plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	d := &declarer{link: l}
	defer d.close(ctx)
	missing, err := p.compare(ctx, d)
	if err != nil {
		return err
	}
	if err := missing.dryRun(ctx, d); err != nil {
		return err
	}
	for _, o := range missing.objects() {
		if err := d.declare(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// objects are what p declares, in order.
func (p Plan) objects() []declarable {
	var list []declarable
	for _, e := range p.Exchanges {
		list = append(list, e)
	}
	for _, q := range p.Queues {
		list = append(list, q)
	}
	for _, b := range p.Bindings {
		list = append(list, b)
	}
	return list
}

// dryRun checks whether the user may create the missing objects, and creates nothing: RabbitMQ checks the permissions
// for each declaration before it finds that it is impossible.
func (p Plan) dryRun(ctx context.Context, d *declarer) error {
	if len(p.Exchanges)+len(p.Queues) == 0 || len(p.objects()) == 1 {
		return nil // a refusal would leave nothing behind
	}
	for _, o := range p.objects() {
		var err error
		switch o := o.(type) {
		case Exchange:
			o.Args = impossible(o.Args, "alternate-exchange")
			err = rehearsed(d.declare(ctx, o), "alternate-exchange")
		case Queue:
			o.Args = impossible(o.Args, "x-max-length")
			err = rehearsed(d.declare(ctx, o), "x-max-length")
		case Binding:
			err = d.mayBind(ctx, o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayBind tries to bind an exchange with the name of the destination, if there is none: the permissions depend only on
// the name.
func (d *declarer) mayBind(ctx context.Context, b Binding) error {
	if err := d.do(ctx, Exchange{Name: b.To}.exists); !isNotFound(err) {
		return nil
	}
	err := d.do(ctx, Binding{Exchange: b.Exchange, Key: b.Key, To: b.To, ToExchange: true}.declare)
	if isRefused(err) {
		return b.refused(err)
	}
	return nil
}

// impossible returns args with a value that no declaration accepts.
func impossible(args amqp.Table, argument string) amqp.Table {
	changed := amqp.Table{}
	maps.Copy(changed, args)
	changed[argument] = true // a plan of a program may have one
	return changed
}

// rehearsed returns why an impossible declaration was refused, unless it was for being impossible, or for differing
// from an object that another process has created meanwhile.
func rehearsed(err error, argument string) error {
	refusal, ok := errors.AsType[*amqp.Error](err)
	planned := ok && refusal.Code == amqp.PreconditionFailed && strings.Contains(refusal.Reason, "'"+argument+"'")
	if _, exists := errors.AsType[*ArgumentError](err); exists || planned {
		return nil
	}
	return err
}

// isRefused reports whether the user lacks the permission.
func isRefused(err error) bool { return hasCode(err, amqp.AccessRefused) }

var errNoPlugin = errors.New("the broker has no x-delayed-message exchanges")

// pluginHint adds a remedy if the broker does not know the exchange type. RabbitMQ ends the connection then.
func pluginHint(e Exchange, err error) error {
	if e.Kind == "x-delayed-message" && hasCode(err, amqp.CommandInvalid) {
		return fmt.Errorf("%w: install and enable the plugin (rabbitmq-plugins enable rabbitmq_delayed_message_exchange), "+
			"which RabbitMQ 4.3 and later no longer run, or open the broker with x-transport=ttl, which needs no plugin",
			errNoPlugin)
	}
	return err
}

// probePlugin checks whether the broker supports x-delayed-message exchanges, on a separate connection: RabbitMQ ends a
// connection that declares an exchange of an unknown type.
func probePlugin(ctx context.Context, cfg brokers.Config) error {
	l := newConnection(cfg.URL, cfg.Name+" (probe)", slog.New(slog.DiscardHandler)) // the caller reports the result
	defer l.close()
	d := &declarer{link: l}
	probe := delayedExchange("redrive.probe")
	err := d.do(ctx, func(ch *amqp.Channel) error {
		// auto-delete, and deleted below: it must not stay
		return ch.ExchangeDeclare(probe.Name, probe.Kind, false, true, false, false, probe.Args)
	})
	switch {
	case isRefused(err): // RabbitMQ looks for the type first
		return nil
	case err != nil:
		return pluginHint(probe, err)
	}
	return d.do(ctx, func(ch *amqp.Channel) error { return ch.ExchangeDelete(probe.Name, false, false) })
}
