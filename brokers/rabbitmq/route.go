package rabbitmq

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// The grid serves delays that are not configured: powers of two from 50 ms to 14.5 h, 21 queues.
const (
	gridFirst = 50 * time.Millisecond
	gridLast  = 24 * time.Hour
)

// delaySteps returns the delays that have a queue. RabbitMQ can only expire the message at the head of a queue, so each
// delay needs a separate one; a short delay behind a long one would wait for it.
func delaySteps(named []time.Duration, grid bool) driver.Steps {
	steps := slices.Clone(named)
	if grid {
		for d := gridFirst; d <= gridLast; d *= 2 {
			steps = append(steps, d)
		}
	}
	return driver.NewSteps(steps...)
}

// nextStep chooses the queue for a delay and returns the rest, for which the message is sent on afterwards. Rounding up
// may use half of the promise (1 %, or 100 ms); the other half is for delivery.
func nextStep(steps driver.Steps, delay time.Duration) (step, rest time.Duration) {
	return steps.Pick(delay, max(driver.CeilMillis(delay)/200, 50*time.Millisecond))
}

// route is where a message goes now so that it reaches its consumer after a delay.
type route struct {
	exchange, key string
	rest          time.Duration // left to wait when the message comes back
	checked       bool          // the time of delivery is sent along, and checked when the message comes back
	// milliseconds after which the message leaves its wait queue on its own; 0: the queue's time to live
	expiration    int64
	pluginDelay   int64 // in milliseconds, for the x-delayed-message plugin
	unconfirmable bool  // the plugin answers every mandatory publication with "no route"
}

// maxDelay of a transport; 0 if it cannot delay.
func (d *design) maxDelay() time.Duration {
	if d.transport == transportTTL && len(d.delays) == 0 && !d.single {
		return 0
	}
	return envelope.MaxDelay
}

// retry routes to the consumer in origin.
func (d *design) retry(n brokers.Names, origin *envelope.Origin, delay time.Duration) (route, error) {
	direct := route{key: n.Queue}
	switch {
	// Laravel sends every retry through the retry queue.
	case d.single && d.naming.Preset == "laravel" && len(d.named) == 0 && delay <= 0:
		return route{key: n.Retry(0), expiration: 1}, nil
	case delay <= 0:
		return direct, nil
	case delay > d.maxDelay():
		return route{}, tooLong(delay, d.maxDelay())
	case d.transport == transportPlugin:
		return route{
			exchange: pluginExchange(n), key: originKey(n, origin), pluginDelay: roundUp(delay),
			unconfirmable: true,
		}, nil
	case d.transport == transportReject:
		r := route{key: n.Retry(0), checked: true}
		ttl, known := d.ttlOf(n.Retry(0))
		if !known {
			ttl = d.ttl()
		}
		r.rest = max(0, delay-ttl)
		r.expiration = roundUp(delay - r.rest) // see throughDelayQueue
		if n.RetryExchange != "" {
			r.exchange, r.key = n.RetryExchange, originKey(n, origin)
		}
		return r, nil
	}
	return d.wait(delay, n.Retry), nil
}

// recorded redirects r to where the consumer's broker, which may have another naming scheme, said that its redrives go.
// If that is not the consumer's queue, it is a wait queue.
func (r route) recorded(o *driver.Outgoing) route {
	switch to := o.Origin.RedriveTo; to {
	case "", r.key:
		return r
	case o.To.Consumer:
		return route{key: to}
	default:
		return route{key: to, expiration: 1}
	}
}

// RedriveTo implements driver.Addresser.
func (t *transport) RedriveTo(to *driver.Destination) string {
	r, _ := t.design.retry(to.Names, &envelope.Origin{}, 0) // "" with an error
	return r.key
}

// maxRounds bounds how often a message passes through a wait queue that was declared with a shorter time to live.
const maxRounds = 50

// wait routes to the queue for a delay, among those named by name.
func (d *design) wait(delay time.Duration, name func(time.Duration) string) route {
	if !d.single {
		step, rest := nextStep(d.delays, delay)
		return d.throughDelayQueue(name(step), step, rest)
	}
	one := route{key: name(0), expiration: roundUp(delay)}
	ttl, known := d.ttlOf(one.key)
	switch {
	case !known || ttl >= delay:
		return one
	// Too short for that many rounds: use the queue named after the delay.
	case len(d.delays) > 0 && delay > maxRounds*ttl:
		step, rest := nextStep(d.delays, delay)
		return d.throughDelayQueue(name(step), step, rest)
	}
	one.rest, one.checked = delay-ttl, true
	return one
}

// throughDelayQueue routes to the queue of one delay. The message carries the delay too: a foreign queue may have
// another time to live, or none, and one that is being created has none yet. RabbitMQ 3 shows a quorum queue to other
// connections before it sets its x-message-ttl; a message that arrived in between would never expire, and block all
// behind it.
func (d *design) throughDelayQueue(queue string, step, rest time.Duration) route {
	r := route{key: queue, rest: rest, checked: rest > 0, expiration: roundUp(step)}
	if ttl, known := d.ttlOf(queue); known && ttl < step {
		r.rest, r.checked = rest+step-ttl, true
	}
	return r
}

// delayed routes to all consumers of topic, after a first-delivery delay.
func (d *design) delayed(n brokers.Names, topic string, delay time.Duration) (route, error) {
	switch {
	case delay <= 0:
		return route{exchange: n.Exchange, key: topic}, nil
	case delay > d.maxDelay():
		return route{}, tooLong(delay, d.maxDelay())
	case n.Exchange == "" || d.transport == transportReject:
		return d.retry(n, &envelope.Origin{RoutingKey: topic}, delay)
	case d.transport == transportPlugin:
		return route{exchange: n.Exchange + ".delayed", key: topic, pluginDelay: roundUp(delay), unconfirmable: true}, nil
	}
	return d.wait(delay, func(step time.Duration) string { return d.firstName(n, topic, step) }), nil
}

// originKey is the routing key of the message's first publication.
func originKey(n brokers.Names, origin *envelope.Origin) string {
	return cmp.Or(origin.RoutingKey, n.Queue)
}

func tooLong(delay, longest time.Duration) error {
	if longest == 0 {
		return fmt.Errorf("rabbitmq: %w: a delay of %s: there are no delay queues; name the delays (x-delays) "+
			"or give the retry queue a name without {delay}",
			brokers.ErrUnsupported, delay)
	}
	return fmt.Errorf("rabbitmq: %w: a delay of %s: the longest is %s", brokers.ErrUnsupported, delay, longest)
}

// roundUp returns whole milliseconds, never less than d.
func roundUp(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
