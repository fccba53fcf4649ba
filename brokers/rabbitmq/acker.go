package rabbitmq

import (
	"sync"
	"time"
)

// acker sends the answers of one channel from one goroutine and puts as many acks as it can into one frame: a quorum
// queue writes its log once for each.
//
// An ack that cannot be sent, because the channel has ended, is counted (D26): RabbitMQ gives its message out again.
type acker struct {
	ch      answerer
	failed  func(acks int)
	answers chan answer
	done    chan struct{}

	mu     sync.RWMutex // guards answers against being closed while in use
	closed bool

	low     uint64          // every delivery tag below it is answered
	settled map[uint64]bool // tags from low on that are answered: true when the broker has been told
	held    int             // tags in settled of which the broker has not been told
	most    int             // held tags that may wait
	ticking bool            // they have begun to wait
}

// answerer is what the acker needs of an AMQP channel.
type answerer interface {
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

type answer struct {
	tag  uint64
	nack bool
}

func newAcker(ch answerer, prefetch int, failed func(acks int)) *acker {
	a := &acker{
		ch:      ch,
		failed:  failed,
		answers: make(chan answer, prefetch),
		done:    make(chan struct{}),
		low:     1,
		settled: map[uint64]bool{},
		most:    prefetch / 4,
	}
	go a.run()
	return a
}

func (a *acker) ack(tag uint64)  { a.put(answer{tag: tag}) }
func (a *acker) nack(tag uint64) { a.put(answer{tag: tag, nack: true}) }

// put never waits for long: there are no more answers than the prefetch allows. After close it sends nothing, because
// the channel's end has given the message back.
func (a *acker) put(x answer) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	switch {
	case !a.closed:
		a.answers <- x
	case !x.nack:
		a.failed(1)
	}
}

// close sends what is left and ends the goroutine.
func (a *acker) close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.answers)
	}
	a.mu.Unlock()
	<-a.done
}

// patience is how long an ack that is out of turn waits for those before it, so that one frame can carry all.
const patience = 5 * time.Millisecond

func (a *acker) run() {
	defer close(a.done)
	timer := time.NewTimer(patience)
	timer.Stop()
	for {
		select {
		case x, open := <-a.answers:
			if !open {
				a.flush(0)
				return
			}
			a.take(x)
			a.flush(a.most)
			if len(a.settled) > 0 && !a.ticking {
				a.ticking = true
				timer.Reset(patience)
			}
		case <-timer.C:
			a.ticking = false
			a.flush(0)
		}
	}
}

// take notes x and everything else that has come by now.
func (a *acker) take(x answer) {
	for {
		if x.nack {
			_ = a.ch.Nack(x.tag, false, true) // without the channel it goes back by itself
		} else {
			a.held++
		}
		a.settled[x.tag] = x.nack
		var open bool
		select {
		case x, open = <-a.answers:
			if open {
				continue
			}
		default:
		}
		return
	}
}

// flush acks everything up to the first unanswered tag with one frame. Acks beyond it go one by one, but only when
// there are more than most of them: they take places of the prefetch.
//
// The frame for many must name a tag that the broker still waits for: given another, RabbitMQ takes all that is under
// way for acked before it notices.
func (a *acker) flush(most int) {
	var last uint64
	acks := 0 // up to last
	for {
		told, ok := a.settled[a.low]
		if !ok {
			break
		}
		if !told {
			last = a.low
			a.held--
			acks++
		}
		delete(a.settled, a.low)
		a.low++
	}
	if last > 0 && a.ch.Ack(last, true) != nil {
		a.failed(acks)
	}
	if a.held <= most {
		return
	}
	for tag, told := range a.settled {
		if !told {
			if a.ch.Ack(tag, false) != nil {
				a.failed(1)
			}
			a.settled[tag] = true
		}
	}
	a.held = 0
}
