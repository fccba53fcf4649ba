// Package amqpfault explains errors of amqp091-go to the drivers that use it.
package amqpfault

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/driver"
)

// full is how RabbitMQ refuses a connection if the node, the virtual host or the user has as many as it may have.
var full = regexp.MustCompile(`connection limit \(\d+\) is reached`)

// Connecting adds driver.ErrTemporary to the error of an attempt to connect if the server is starting, stopping or
// full, or if the connection ended without an answer, as behind a load balancer that has no server. One that ends after
// the password was sent is an exception: that is how RabbitMQ refuses it.
func Connecting(err error) error {
	fault, ok := errors.AsType[*amqp.Error](err)
	switch {
	case !ok:
		return err
	case fault == amqp.ErrVhost: // RabbitMQ answers if the user may not use it
		return fmt.Errorf("%w: the connection ended while its virtual host was opened", driver.ErrTemporary)
	case fault.Server && (fault.Code == amqp.ConnectionForced || fault.Code == amqp.InternalError),
		full.MatchString(fault.Reason), fault == amqp.ErrClosed,
		!fault.Server && fault.Code == amqp.FrameError && !strings.Contains(fault.Reason, "tls: "): // not an alert
		return fmt.Errorf("%w: %w", driver.ErrTemporary, err)
	}
	return err
}
