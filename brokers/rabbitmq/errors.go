package rabbitmq

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// UnroutableError means that RabbitMQ has no queue for a publication, or not even the exchange. Nothing was stored.
// errors.Is(err, brokers.ErrUnroutable) is true for it.
type UnroutableError struct {
	// Exchange of the publication; "" is the default exchange, for which the key is a queue's name.
	Exchange string
	// RoutingKey of the publication.
	RoutingKey string
	// Reason is RabbitMQ's own text.
	Reason string

	exchangeMissing bool
}

// Error names what is missing.
func (e *UnroutableError) Error() string {
	if e.Exchange == "" {
		return fmt.Sprintf("rabbitmq: publish to queue %q: %v (%s): declare the queue, or correct the name",
			e.RoutingKey, brokers.ErrUnroutable, e.Reason)
	}
	return fmt.Sprintf("rabbitmq: publish to exchange %q with routing key %q: %v (%s): declare the exchange and bind a "+
		"queue with this key",
		e.Exchange, e.RoutingKey, brokers.ErrUnroutable, e.Reason)
}

// Is makes errors.Is(err, brokers.ErrUnroutable) true.
func (e *UnroutableError) Is(target error) bool {
	return target == brokers.ErrUnroutable || e.exchangeMissing && target == driver.ErrMissing
}

var (
	// ErrRefused means that RabbitMQ refused to store a publication, most often because a queue with
	// x-overflow=reject-publish is full. The message is not stored; a later attempt may succeed.
	ErrRefused = errors.New("refused by the broker, is the queue full?")
	// ErrUnconfirmed means that no confirm arrived in time. The message may or may not be stored.
	ErrUnconfirmed = errors.New("not confirmed in time")
	// ErrBlocked means that RabbitMQ accepts no publications because it is short of memory or disk.
	ErrBlocked = errors.New("the broker accepts no messages, because it is short of memory or disk")
)

// errConnectionLost marks operations that are worth repeating on another channel.
var errConnectionLost = errors.New("the connection to the broker was lost")

// causedBy reports whether a channel exception was caused by a publication to exchange. RabbitMQ names the exchange
// only in the text.
func causedBy(e *amqp.Error, exchange string) bool {
	return e.Server && (e.Code == amqp.NotFound || e.Code == amqp.AccessRefused) &&
		strings.Contains(e.Reason, "exchange '"+cmp.Or(exchange, "amq.default")+"' ")
}

// channelError returns the error of a publication that was in flight when its channel ended with e. Publications that
// have not caused it are worth repeating.
func channelError(o *outgoing, e *amqp.Error) error {
	switch {
	case e == nil:
		return errConnectionLost
	case causedBy(e, o.exchange) && e.Code == amqp.NotFound:
		return &UnroutableError{Exchange: o.exchange, RoutingKey: o.key, Reason: e.Reason, exchangeMissing: true}
	case causedBy(e, o.exchange):
		return fmt.Errorf("rabbitmq: publish to exchange %q: %w", o.exchange, e)
	case !e.Server || e.Code != amqp.PreconditionFailed:
	case strings.Contains(e.Reason, fmt.Sprintf("message size %d is larger", len(o.msg.Body))):
		return o.fault(fmt.Errorf("%w: %s", brokers.ErrTooLarge, e.Reason))
	case !strings.Contains(e.Reason, "message size "):
		return o.fault(e)
	}
	return fmt.Errorf("%w: %w", errConnectionLost, e)
}

// unanswered are the reasons that RabbitMQ gives with its code for a missing queue when a queue does not answer, or its
// node is down: all but "no queue".
var unanswered = regexp.MustCompile(" (due to timeout|is down or inaccessible|process is stopped by supervisor|" +
	"may be stopping or being demoted|has crashed and failed to restart)$")

// isNotFound reports whether a queue or exchange is missing.
func isNotFound(err error) bool {
	refusal, ok := errors.AsType[*amqp.Error](err)
	return ok && refusal.Code == amqp.NotFound && !unanswered.MatchString(refusal.Reason)
}

// isTemporary reports whether a method failed for a reason that passes on its own: the connection was lost, a node
// stops, or a queue has no leader. Any other refusal that ends a connection would end the next one too.
func isTemporary(err error, conn *amqp.Connection) bool {
	refusal, ok := errors.AsType[*amqp.Error](err)
	if !ok || !refusal.Server || refusal.Code == amqp.ConnectionForced || refusal.Code == amqp.InternalError {
		return conn.IsClosed()
	}
	return unanswered.MatchString(refusal.Reason)
}

// hasCode reports whether RabbitMQ has refused with a reply code.
func hasCode(err error, code int) bool {
	refusal, ok := errors.AsType[*amqp.Error](err)
	return ok && refusal.Code == code
}
