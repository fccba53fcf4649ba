package kafka

import (
	"errors"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// keyOrder keeps the messages of a key in order over retries, for one partition. While a message waits for its retry,
// the later ones of its key are moved into a parking topic, from the main topic's partition to the same one there, and
// are taken from it when the retry has ended. Memory holds offsets only. The executor calls it for one message of a key
// at a time.
type keyOrder struct {
	p     *partition
	topic string
	lot   *parked

	parks  chan parkRequest
	mu     sync.Mutex
	keys   map[string]*keyState // keys that may not simply go on
	reader struct {
		sync.Mutex
		*fetcher
	}
}

// keyState is what holds a key back.
type keyState struct {
	retrying map[string]struct{} // positions of messages that wait for their retry
	parked   []parkedMessage     // in order
	lock     *parkedMessage      // the dead letter that blocks the key, with order-dead=block
}

type parkedMessage struct {
	offset   int64 // in the parking topic
	position string
}

type parkRequest struct {
	record *kgo.Record
	stored chan int64 // the offset; closed without one if the partition is given up
}

func newKeyOrder(p *partition) *keyOrder {
	o := &keyOrder{p: p, topic: p.sub.b.parkingName(p.sub.topic, p.sub.cfg.Group), parks: make(chan parkRequest), keys: map[string]*keyState{}}
	o.reader.fetcher = p.sub.b.fetcher(place{o.topic, p.id})
	return o
}

// parkingName is the topic in which messages wait behind an earlier one of their key.
func (b *Broker) parkingName(topic, group string) string {
	return b.cfg.Naming.For(topic, group).Retry(0) + ".parked"
}

func (b *Broker) parking(topic, group string, partitions int32) spec {
	return b.forever(b.parkingName(topic, group), "the parking topic of order=key", partitions)
}

// handle runs for one message of a key at a time.
func (o *keyOrder) handle(d *delivery) {
	switch {
	case d.release:
		o.unlock(string(d.record.Key))
		d.settle()
		o.goOn(string(d.record.Key))
	case d.resume:
		o.goOn(string(d.record.Key))
	case d.record.Key == nil:
		o.p.handle(d) // nothing to keep in order
	case d.isRetry():
		if o.attempt(d) {
			d.settle()
			o.goOn(string(d.record.Key))
		}
	case o.isHeld(d.record.Key):
		if o.holds(d) || o.park(d) {
			d.settle()
		}
	default:
		if o.attempt(d) {
			d.settle()
		}
	}
}

// attempt hands a message out and notes what became of it. It reports false when the partition was given up first.
func (o *keyOrder) attempt(d *delivery) bool {
	b, key := o.p.sub.b, string(d.record.Key)
	watched := b.flights.begin(d.origin)
	acked := o.p.deliver(d)
	became := b.flights.end(d.origin, watched)
	if !acked {
		return false
	}
	o.mu.Lock()
	state := o.keys[key]
	if state == nil {
		state = &keyState{retrying: map[string]struct{}{}}
	}
	delete(state.retrying, d.origin.Position)
	if became.rescheduled {
		state.retrying[d.origin.Position] = struct{}{}
	}
	freed := state.lock != nil && !became.rescheduled && !became.dead && state.lock.position == d.origin.Position
	block := became.dead && !became.rescheduled && state.lock == nil && o.p.sub.cfg.Params.String("order-dead") == "block"
	o.keep(key, state)
	o.mu.Unlock()
	if freed { // redriven, with success
		o.unlock(key)
	}
	return !block || o.block(key, state, d)
}

// keep remembers a state as long as it holds anything back. The caller holds mu.
func (o *keyOrder) keep(key string, state *keyState) {
	if len(state.retrying) == 0 && len(state.parked) == 0 && state.lock == nil {
		delete(o.keys, key)
		return
	}
	o.keys[key] = state
}

// positionOf returns where the message of a parked record lay on its topic.
func (o *keyOrder) positionOf(r *kgo.Record) string {
	return readOrigin(r, o.p.sub.topic, o.p.sub.cfg.Group, "", true).Position
}

func (o *keyOrder) isHeld(key []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys[string(key)] != nil
}

// holds reports whether a message of the main topic is known already: it was moved aside, and then the process ended
// before its offset was committed.
func (o *keyOrder) holds(d *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[string(d.record.Key)]
	if _, ok := state.retrying[d.origin.Position]; ok {
		return true
	}
	for _, m := range state.parked {
		if m.position == d.origin.Position {
			return true
		}
	}
	return state.lock != nil && state.lock.position == d.origin.Position
}

// park moves a message behind the others of its key.
func (o *keyOrder) park(d *delivery) bool {
	m := newMessage(d.record, d.origin, d.waiting)
	r := newWaiting(o.topic, m, d.origin)
	r.Partition = o.p.id
	offset, ok := o.store(r)
	switch {
	case !ok:
		return false
	case offset == noRoom:
		o.p.sub.log.Warn("a message is too large to be parked behind an earlier one of its key, and is handled at once",
			"position", d.origin.Position, "bytes", size(r))
		return o.attempt(d)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[string(d.record.Key)]
	if state == nil {
		state = &keyState{retrying: map[string]struct{}{}}
	}
	if state.has(d.origin.Position) { // catchUp met an earlier write of it
		o.lot.settle(offset)
		return true
	}
	state.parked = append(state.parked, parkedMessage{offset, d.origin.Position})
	o.keep(string(d.record.Key), state)
	return true
}

// block keeps a key from going on behind a dead letter, over restarts too.
func (o *keyOrder) block(key string, state *keyState, d *delivery) bool {
	r := &kgo.Record{
		Topic: o.topic, Partition: o.p.id, Key: []byte(key),
		Headers: append(whereabouts(d.origin), header(headerControl, controlLock)),
	}
	offset, ok := o.store(r)
	if !ok || offset == noRoom {
		return ok // a lock is small
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	state.lock = &parkedMessage{offset, d.origin.Position}
	o.keep(key, state)
	o.p.sub.log.Warn("a dead letter blocks its key; redrive it, or call Release", "position", d.origin.Position)
	return true
}

func (o *keyOrder) unlock(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[key]
	if state == nil || state.lock == nil {
		return
	}
	o.lot.settle(state.lock.offset)
	state.lock = nil
	o.keep(key, state)
}

// goOn handles what is parked of a key, until one of it has to wait again.
func (o *keyOrder) goOn(key string) {
	for {
		o.mu.Lock()
		state := o.keys[key]
		if state == nil || len(state.parked) == 0 || len(state.retrying) > 0 || state.lock != nil {
			o.mu.Unlock()
			return
		}
		first := state.parked[0]
		o.mu.Unlock()

		o.reader.Lock()
		r, err := o.reader.at(o.p.ctx, first.offset)
		o.reader.Unlock()
		if err == nil && o.positionOf(r) != first.position {
			err = errGone // another record lies there: the topic was made again, or lost its end
		}
		switch {
		case errors.Is(err, errGone):
			o.p.sub.log.Error("a parked message is gone from its topic", "parking_topic", o.topic, "offset", first.offset)
		case errors.Is(err, errMadeAgain):
			o.restart()
			return
		case err != nil:
			return // given up; the next owner continues
		default:
			d := &delivery{record: r, waiting: true, origin: readOrigin(r, o.p.sub.topic, o.p.sub.cfg.Group, "", true)}
			if !o.attempt(d) {
				return
			}
		}
		o.mu.Lock()
		state.parked = state.parked[1:]
		o.keep(key, state)
		o.mu.Unlock()
		o.lot.settle(first.offset)
	}
}
