package rabbitmq

import "sync"

// acker sends the answers of one channel from one goroutine and puts as many acks as it can into one frame: a quorum
// queue writes its log once for each.
type acker struct {
	ch      answerer
	answers chan answer
	done    chan struct{}

	mu     sync.RWMutex // guards answers against being closed while in use
	closed bool

	low     uint64          // every delivery tag below it is answered
	settled map[uint64]bool // tags from low on that are answered: true when the broker has been told
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

func newAcker(ch answerer, prefetch int) *acker {
	a := &acker{
		ch:      ch,
		answers: make(chan answer, prefetch),
		done:    make(chan struct{}),
		low:     1,
		settled: map[uint64]bool{},
	}
	go a.run()
	return a
}

func (a *acker) ack(tag uint64)  { a.put(answer{tag: tag}) }
func (a *acker) nack(tag uint64) { a.put(answer{tag: tag, nack: true}) }

// put never waits for long: there are no more answers than the prefetch allows. After close it does nothing, because
// the channel's end has given the message back.
func (a *acker) put(x answer) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if !a.closed {
		a.answers <- x
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

func (a *acker) run() {
	defer close(a.done)
	batch := make([]uint64, 0, cap(a.answers))
	for x := range a.answers {
		batch = batch[:0]
		for more := true; more; {
			if x.nack {
				_ = a.ch.Nack(x.tag, false, true) // without the channel it goes back by itself
				a.settled[x.tag] = true
			} else {
				a.settled[x.tag] = false
				batch = append(batch, x.tag)
			}
			select {
			case x, more = <-a.answers:
			default:
				more = false
			}
		}
		a.flush(batch)
	}
}

// flush acks batch. Everything up to the first unanswered tag goes into one frame. Its tag must be one that the broker
// still waits for: given another, RabbitMQ takes all that is under way for acked before it notices.
func (a *acker) flush(batch []uint64) {
	var last uint64
	for {
		told, ok := a.settled[a.low]
		if !ok {
			break
		}
		if !told {
			last = a.low
		}
		delete(a.settled, a.low)
		a.low++
	}
	if last > 0 {
		_ = a.ch.Ack(last, true) // without the channel the messages come again
	}
	for _, tag := range batch {
		if tag >= a.low {
			_ = a.ch.Ack(tag, false)
			a.settled[tag] = true
		}
	}
}
