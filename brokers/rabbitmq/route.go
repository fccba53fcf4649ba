package rabbitmq

import (
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// route is where a message goes now, so that it is in front of its consumer when a delay has passed.
type route struct {
	exchange, key string
	rest          time.Duration // still to wait when the message comes back
	checked       bool          // the time of delivery travels along, and is checked when the message comes back
	pluginDelay   int64         // milliseconds for the x-delayed-message plugin
	unconfirmable bool          // the plugin answers every mandatory publication with "no route"
}

// maxDelay of a transport; 0 when it cannot delay.
func (d *design) maxDelay() time.Duration {
	if d.transport == transportTTL && len(d.ladder.steps) == 0 {
		return 0
	}
	return envelope.MaxDelay
}

// retry routes to the consumer that origin names.
func (d *design) retry(n brokers.Names, origin *envelope.Origin, delay time.Duration) (route, error) {
	straight := route{key: n.Queue}
	switch {
	case d.transport == transportTTL && d.loneRetry() && len(d.named) == 0 && delay <= 0:
		return route{key: n.Retry(0)}, nil
	case delay <= 0:
		return straight, nil
	case delay > d.maxDelay():
		return route{}, tooLong(delay, d.maxDelay())
	case d.transport == transportPlugin:
		return route{exchange: pluginExchange(n), key: originKey(n, origin), pluginDelay: roundUp(delay), unconfirmable: true}, nil
	case d.transport == transportReject:
		r := route{key: n.Retry(0), rest: max(0, delay-d.retryTTL), checked: true}
		if n.RetryExchange != "" {
			r.exchange, r.key = n.RetryExchange, originKey(n, origin)
		}
		return r, nil
	}
	step, rest, _ := d.ladder.step(delay)
	return route{key: d.retryName(n, step), rest: rest, checked: rest > 0}, nil
}

// delayed routes to all consumers of topic, after a first-delivery delay.
func (d *design) delayed(topic string, delay time.Duration) (route, error) {
	n := d.names(topic, "")
	straight := route{exchange: n.Exchange, key: topic}
	switch {
	case delay <= 0:
		return straight, nil
	case delay > d.maxDelay():
		return route{}, tooLong(delay, d.maxDelay())
	case n.Exchange == "" || d.transport == transportReject:
		return d.retry(n, &envelope.Origin{RoutingKey: topic}, delay)
	case d.transport == transportPlugin:
		return route{exchange: n.Exchange + ".delayed", key: topic, pluginDelay: roundUp(delay), unconfirmable: true}, nil
	}
	step, rest, _ := d.ladder.step(delay)
	return route{key: d.firstName(n, topic, step), rest: rest, checked: rest > 0}, nil
}

// originKey is the routing key that the message was first published with (D18).
func originKey(n brokers.Names, origin *envelope.Origin) string {
	if origin.RoutingKey != "" {
		return origin.RoutingKey
	}
	return n.Queue
}

func tooLong(delay, longest time.Duration) error {
	if longest == 0 {
		return fmt.Errorf("rabbitmq: %w: a delay of %s: there are no delay queues; name the delays (x-delays) or switch x-grid on",
			brokers.ErrUnsupported, delay)
	}
	return fmt.Errorf("rabbitmq: %w: a delay of %s: the longest is %s", brokers.ErrUnsupported, delay, longest)
}

// roundUp gives whole milliseconds, never fewer than d.
func roundUp(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
