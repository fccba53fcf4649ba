package rabbitmq

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// strictChannel keeps the books as RabbitMQ does: it knows which deliveries are under way and accepts no answer to
// another one.
type strictChannel struct {
	t        *testing.T
	underWay map[uint64]bool
	answered map[uint64]bool // by the consumer; guarded by mu
	mu       sync.Mutex
	acked    map[uint64]bool
	nacked   map[uint64]bool
	frames   int
}

func (c *strictChannel) Ack(tag uint64, multiple bool) error {
	c.frames++
	if !c.underWay[tag] {
		c.t.Errorf("ack of %d, which is not under way", tag)
	}
	for other := range c.underWay {
		if other == tag || multiple && other < tag {
			c.mu.Lock()
			if !c.answered[other] {
				c.t.Errorf("ack up to %d takes %d along, which nobody answered", tag, other)
			}
			c.mu.Unlock()
			delete(c.underWay, other)
			c.acked[other] = true
		}
	}
	return nil
}

func (c *strictChannel) Nack(tag uint64, multiple, requeue bool) error {
	c.frames++
	if !c.underWay[tag] || multiple || !requeue {
		c.t.Errorf("nack of %d", tag)
	}
	delete(c.underWay, tag)
	c.nacked[tag] = true
	return nil
}

// Whatever the order of the answers: every delivery gets its own, none gets another's, and acks share frames.
func TestAcker_AnswersEachDeliveryOnce(t *testing.T) {
	const total = 2000
	random := rand.New(rand.NewPCG(3, 4))
	ch := &strictChannel{
		t: t, underWay: map[uint64]bool{}, answered: map[uint64]bool{}, acked: map[uint64]bool{}, nacked: map[uint64]bool{},
	}
	order := make([]uint64, total)
	for i := range order {
		order[i] = uint64(i + 1)
		ch.underWay[order[i]] = true
	}
	for i := range order { // mixed within a window, as handlers of different speed do
		j := min(total-1, i+random.IntN(50))
		order[i], order[j] = order[j], order[i]
	}
	failed := 0
	a := newAcker(ch, 64, func(n int) { failed += n })
	refused := 0
	for _, tag := range order {
		ch.mu.Lock()
		ch.answered[tag] = true
		ch.mu.Unlock()
		if tag%7 == 0 {
			refused++
			a.nack(tag)
		} else {
			a.ack(tag)
		}
	}
	a.close()
	require.Empty(t, ch.underWay)
	require.Len(t, ch.nacked, refused)
	require.Len(t, ch.acked, total-refused)
	require.Zero(t, failed)
	a.ack(1) // after the end it is nobody's
	a.nack(2)
	a.close()
	require.Equal(t, 1, failed)
}

// deadChannel is one that has ended.
type deadChannel struct{}

func (deadChannel) Ack(uint64, bool) error        { return amqp.ErrClosed }
func (deadChannel) Nack(uint64, bool, bool) error { return amqp.ErrClosed }

// D26: each ack that does not get out is counted once, whether it shares a frame or not; nacks are not acks.
func TestAcker_CountsAcksThatFail(t *testing.T) {
	failed := 0
	a := newAcker(deadChannel{}, 64, func(n int) { failed += n })
	for _, tag := range []uint64{1, 2, 3, 5, 8, 9} { // 8 and 9 are behind 6 and 7, which nobody answers
		a.ack(tag)
	}
	a.nack(4)
	a.close()
	require.Equal(t, 6, failed)
}

// What piled up while the channel was busy goes out in one frame.
func TestAcker_PutsAcksTogether(t *testing.T) {
	ch := &strictChannel{t: t, underWay: map[uint64]bool{}, answered: map[uint64]bool{}, acked: map[uint64]bool{}}
	for tag := range uint64(100) {
		ch.underWay[tag+1], ch.answered[tag+1] = true, true
	}
	a := &acker{ch: ch, settled: map[uint64]bool{}, low: 1, held: 100}
	for tag := range uint64(100) {
		a.settled[tag+1] = false
	}
	a.flush(0)
	require.Equal(t, 1, ch.frames)
	require.Empty(t, ch.underWay)
	require.Empty(t, a.settled)
}

// An ack out of turn waits for the slow message before it, but not for long.
func TestAcker_AcksOutOfTurnWaitALittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ch := &strictChannel{t: t, underWay: map[uint64]bool{}, answered: map[uint64]bool{}, acked: map[uint64]bool{}}
		for tag := range uint64(100) {
			ch.underWay[tag+1], ch.answered[tag+1] = true, true
		}
		a := newAcker(ch, 100, func(n int) { t.Errorf("%d acks failed", n) })
		for tag := uint64(2); tag <= 11; tag++ {
			a.ack(tag)
		}
		synctest.Wait()
		require.Zero(t, ch.frames)
		a.ack(1)
		synctest.Wait()
		require.Equal(t, 1, ch.frames, "together")
		require.Len(t, ch.acked, 11)

		a.ack(13)
		time.Sleep(patience)
		synctest.Wait()
		require.Len(t, ch.acked, 12, "alone, in time")
		for tag := uint64(20); tag < 46; tag++ { // more than a quarter of the prefetch
			a.ack(tag)
		}
		synctest.Wait()
		require.Greater(t, len(ch.acked), 36)
		a.close()
		require.Len(t, ch.acked, 38)
	})
}
