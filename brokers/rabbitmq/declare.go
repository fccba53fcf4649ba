package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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

// explain turns RabbitMQ's refusal of a declaration into an ArgumentError.
func explain(err error) error {
	var refusal *amqp.Error
	if !errors.As(err, &refusal) || refusal.Code != amqp.PreconditionFailed {
		return err
	}
	m := inequivalent.FindStringSubmatchIndex(refusal.Reason)
	if m == nil {
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
		Argument: group(1), Kind: group(2), Name: group(3), Want: group(4), Have: group(5),
		haveType: haveType,
	}
}

// declarer runs AMQP methods that may be refused. Each refusal ends its channel.
type declarer struct {
	link *connection
	ch   *amqp.Channel
	conn *amqp.Connection // of ch
}

func (d *declarer) do(ctx context.Context, method func(ch *amqp.Channel) error) error {
	if d.ch == nil || d.ch.IsClosed() {
		var err error
		if d.ch, d.conn, _, err = d.link.channel(ctx); err != nil {
			return err
		}
	}
	ch := d.ch
	return explain(call(ctx, d.conn, func() error { return method(ch) }))
}

// close also closes if ctx has ended.
func (d *declarer) close(ctx context.Context) {
	if d.ch != nil && !d.ch.IsClosed() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = d.do(ctx, (*amqp.Channel).Close) // nothing depends on it
	}
}

// declare creates p. It looks first and creates nothing if anything is in the way; after that it stops at the first
// fault.
func declare(ctx context.Context, l *connection, p Plan) error {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout, fmt.Errorf("no answer within %s", declareTimeout))
	defer cancel()
	d := &declarer{link: l}
	defer d.close(ctx)
	missing, err := p.look(ctx, d)
	if err != nil {
		return err // before creating anything: objects left by a failed start would block the next one
	}
	if err := missing.dryRun(ctx, d); err != nil {
		return err
	}
	for _, e := range missing.Exchanges {
		if err := d.do(ctx, e.declare); err != nil {
			return fmt.Errorf("rabbitmq: declare exchange %q: %w", e.Name, pluginHint(e, err))
		}
	}
	for _, q := range missing.Queues {
		if err := d.do(ctx, q.declare); err != nil {
			return fmt.Errorf("rabbitmq: declare queue %q: %w", q.Name, err)
		}
	}
	for _, b := range missing.Bindings {
		if err := d.do(ctx, b.declare); err != nil {
			return fmt.Errorf("rabbitmq: bind %q to exchange %q with key %q: %w", b.To, b.Exchange, b.Key, bindHint(b, err))
		}
	}
	return nil
}

func (e Exchange) declare(ch *amqp.Channel) error {
	return ch.ExchangeDeclare(e.Name, e.Kind, true, false, false, false, e.Args)
}

func (e Exchange) exists(ch *amqp.Channel) error {
	return ch.ExchangeDeclarePassive(e.Name, e.Kind, true, false, false, false, nil)
}

func (q Queue) declare(ch *amqp.Channel) error {
	_, err := ch.QueueDeclare(q.Name, true, false, false, false, q.Args)
	return err
}

func (b Binding) declare(ch *amqp.Channel) error {
	if b.ToExchange {
		return ch.ExchangeBind(b.To, b.Key, b.Exchange, false, nil)
	}
	return ch.QueueBind(b.To, b.Key, b.Exchange, false, nil)
}

func passiveQueue(name string) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	}
}

// pluginHint adds a remedy if the broker does not know the exchange type. RabbitMQ ends the connection then.
func pluginHint(e Exchange, err error) error {
	if e.Kind == "x-delayed-message" && hasCode(err, amqp.CommandInvalid) {
		return fmt.Errorf("%w: install and enable the plugin (rabbitmq-plugins enable rabbitmq_delayed_message_exchange), "+
			"which RabbitMQ 4.3 and later no longer run, or open the broker with x-transport=ttl, which needs no plugin",
			errNoPlugin)
	}
	return err
}

var errNoPlugin = errors.New("the broker has no x-delayed-message exchanges")
