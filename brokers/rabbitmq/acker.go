package rabbitmq

import (
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers/driver"
)

// acker answers the deliveries of one channel and puts as many acks as possible into one frame, because a quorum queue
// writes to its log once per frame.
type acker struct {
	ch answerer

	mu      sync.Mutex
	low     uint64          // every delivery tag below it is acked
	settled map[uint64]bool // tags from low on that are acked: true once the ack was sent
	answers int64           // settlements so far
}

// answerer is what the acker needs of an AMQP channel.
type answerer interface {
	Ack(tag uint64, multiple bool) error
}

func newAcker(ch answerer) *acker { return &acker{ch: ch, low: 1, settled: map[uint64]bool{}} }

// settle acks deliveries: those up to the first unanswered tag with one frame, later ones individually. It returns an
// error for each, nil for acks that are on their way. A released delivery is not answered. It returns to its queue when
// the channel ends, which is soon: a nack would redeliver it to this consumer at once, and be counted as well.
//
// A frame for several acks must name a tag that is still unacked: with any other, RabbitMQ acks everything in flight
// before it notices.
func (a *acker) settle(settled []driver.Settlement) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers += int64(len(settled))
	faults := make([]error, len(settled))
	note := func(i int, err error) {
		if err != nil {
			faults[i] = driver.ErrLost
		}
	}
	for i := range settled {
		if settled[i].Answer == driver.Ack {
			a.settled[tagOf(&settled[i])] = false
		}
	}
	var last uint64
	for {
		sent, acked := a.settled[a.low]
		if !acked {
			break
		}
		if !sent {
			last = a.low
		}
		delete(a.settled, a.low)
		a.low++
	}
	var shared error
	if last > 0 {
		shared = a.ch.Ack(last, true)
	}
	for i := range settled {
		tag := tagOf(&settled[i])
		switch {
		case settled[i].Answer != driver.Ack:
		case tag < a.low:
			note(i, shared)
		default:
			a.settled[tag] = true
			note(i, a.ch.Ack(tag, false))
		}
	}
	return faults
}

// answered is the number of deliveries passed to settle.
func (a *acker) answered() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answers
}

func tagOf(s *driver.Settlement) uint64 { return s.Delivery.Token.(*amqp.Delivery).DeliveryTag }
