package rabbitmq

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
)

// strictChannel checks acks like RabbitMQ: it knows which deliveries are in flight and refuses an ack of any other.
type strictChannel struct {
	t        *testing.T
	underWay map[uint64]bool
	answered map[uint64]bool // by the consumer; guarded by mu
	mu       sync.Mutex
	acked    map[uint64]bool
	frames   int
}

func (c *strictChannel) Ack(tag uint64, multiple bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frames++
	if !c.underWay[tag] {
		c.t.Errorf("ack of %d, which is not in flight", tag)
	}
	for other := range c.underWay {
		if other == tag || multiple && other < tag {
			if !c.answered[other] {
				c.t.Errorf("ack up to %d includes %d, which was not settled", tag, other)
			}
			delete(c.underWay, other)
			c.acked[other] = true
		}
	}
	return nil
}

// answers settles deliveries in one call.
func answers(outcome driver.Answer, tags ...uint64) []driver.Settlement {
	settled := make([]driver.Settlement, len(tags))
	for i, tag := range tags {
		settled[i] = driver.Settlement{Answer: outcome, Delivery: &driver.Delivery{Token: &amqp.Delivery{DeliveryTag: tag}}}
	}
	return settled
}

// Every acked delivery is acked and no released one is, whatever their order and however many arrive together.
func TestAcker_AcksEachDeliveryOnce(t *testing.T) {
	const total = 2000
	random := rand.New(rand.NewPCG(3, 4))
	ch := &strictChannel{
		t: t, underWay: map[uint64]bool{}, answered: map[uint64]bool{}, acked: map[uint64]bool{},
	}
	order := make([]uint64, total)
	for i := range order {
		order[i] = uint64(i + 1)
		ch.underWay[order[i]] = true
	}
	for i := range order { // mixed within a window, as by handlers of different speed
		j := min(total-1, i+random.IntN(50))
		order[i], order[j] = order[j], order[i]
	}
	a := newAcker(ch)
	refused := 0
	for len(order) > 0 {
		var together []driver.Settlement
		for _, tag := range order[:min(len(order), 1+random.IntN(10))] {
			order = order[1:]
			if tag%700 == 0 {
				refused++
				together = append(together, answers(driver.Release, tag)...)
			} else {
				ch.answered[tag] = true
				together = append(together, answers(driver.Ack, tag)...)
			}
		}
		require.NoError(t, errors.Join(a.settle(together)...))
	}
	require.Len(t, ch.underWay, refused)
	require.Len(t, ch.acked, total-refused)
	require.Less(t, ch.frames, total, "some share a frame")
}

// deadChannel has ended.
type deadChannel struct{}

func (deadChannel) Ack(uint64, bool) error { return amqp.ErrClosed }

// Each ack that cannot be sent is reported, whether or not it shares a frame.
func TestAcker_ReportsFailedAcks(t *testing.T) {
	a := newAcker(deadChannel{})
	faults := a.settle(answers(driver.Ack, 1, 2, 3, 5, 8, 9)) // the others are in flight
	require.Len(t, faults, 6)
	for _, err := range faults {
		require.ErrorIs(t, err, driver.ErrLost)
	}
}

// Deliveries that are settled together are acked in one frame.
func TestAcker_CombinesAcks(t *testing.T) {
	ch := &strictChannel{t: t, underWay: map[uint64]bool{}, answered: map[uint64]bool{}, acked: map[uint64]bool{}}
	tags := make([]uint64, 100)
	for i := range tags {
		tags[i] = uint64(i + 1)
		ch.underWay[tags[i]], ch.answered[tags[i]] = true, true
	}
	a := newAcker(ch)
	require.NoError(t, errors.Join(a.settle(answers(driver.Ack, tags...))...))
	require.Equal(t, 1, ch.frames)
	require.Empty(t, ch.underWay)
	require.Empty(t, a.settled)
}
