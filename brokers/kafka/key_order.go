package kafka

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers/driver"
)

// keyOrder keeps the messages of a key in order across retries, for one partition. While a message waits for its retry,
// later ones of its key are moved to the same partition of a parking topic, and are taken from it when the retry has
// ended. Memory holds only offsets. The executor calls it for one message of a key at a time.
type keyOrder struct {
	p     *partition
	topic string
	lot   *parked

	parks  chan parkRequest
	mu     sync.Mutex
	keys   map[string]*keyState // blocked keys
	reader struct {
		sync.Mutex
		*fetcher
	}
}

// keyState is what blocks a key.
type keyState struct {
	retrying map[string]string // by the stage of a waiting retry, the position of its message
	parked   []parkedMessage   // in order
	lock     *parkedMessage    // the dead letter that blocks the key, with order-dead=block
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
	o := &keyOrder{
		p: p, topic: p.sub.b.parkingName(p.sub.q.Topic, p.sub.q.Group), parks: make(chan parkRequest),
		keys: map[string]*keyState{},
	}
	o.reader.fetcher = p.sub.b.fetcher(topicPartition{o.topic, p.id})
	return o
}

// parkingName is the topic in which messages wait behind an earlier one of their key.
func (b *transport) parkingName(topic, group string) string {
	return b.cfg.Naming.For(topic, group).Retry(0) + ".parked"
}

func (b *transport) parking(topic, group string, partitions int32) spec {
	return b.forever(b.parkingName(topic, group), "the parking topic of order=key", partitions)
}

// handle runs for one message of a key at a time.
func (o *keyOrder) handle(d *delivery) {
	switch {
	case d.release:
		o.unlock(string(d.record.Key))
		d.settle()
		o.continueKey(string(d.record.Key))
	case d.resume:
		o.continueKey(string(d.record.Key))
	case d.record.Key == nil: // nothing to keep in order
		if _, acked := o.p.deliver(d); acked {
			d.settle()
		}
	case d.isRetry():
		if o.attempt(d) {
			d.settle()
			o.continueKey(string(d.record.Key))
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

// attempt hands a message out and records its fate. It reports false if the partition was given up first.
func (o *keyOrder) attempt(d *delivery) bool {
	key := string(d.record.Key)
	became, acked := o.p.deliver(d)
	if !acked {
		return false
	}
	rescheduled := len(became.next) > 0
	o.mu.Lock()
	state := o.stateOf(d.record.Key)
	delete(state.retrying, d.stage())
	for _, stage := range became.next {
		state.retrying[stage] = d.origin.Position
	}
	freed := state.lock != nil && !became.skipped && !rescheduled && !became.dead &&
		state.lock.position == d.origin.Position
	block := became.dead && !rescheduled && state.lock == nil && o.p.sub.q.Params.String("order-dead") == "block"
	o.keep(key, state)
	o.mu.Unlock()
	if freed { // redriven successfully
		o.unlock(key)
	}
	return !block || o.block(key, state, d)
}

// keep stores a state as long as it blocks anything. The caller holds mu.
func (o *keyOrder) keep(key string, state *keyState) {
	if len(state.retrying) == 0 && len(state.parked) == 0 && state.lock == nil {
		delete(o.keys, key)
		return
	}
	o.keys[key] = state
}

// positionOf returns the position of a parked record's message on its topic.
func (o *keyOrder) positionOf(r *kgo.Record) string {
	return o.p.sub.origin(r, "", true).Position
}

func (o *keyOrder) isHeld(key []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys[string(key)] != nil
}

// holds reports whether a message of the main topic is already known: it was moved aside, and the process ended before
// its offset was committed.
func (o *keyOrder) holds(d *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[string(d.record.Key)]
	at := d.origin.Position
	return slices.Contains(slices.Collect(maps.Values(state.retrying)), at) || state.has(at) ||
		state.lock != nil && state.lock.position == at
}

// park moves a message behind others of its key.
func (o *keyOrder) park(d *delivery) bool {
	r := newWaiting(o.topic, &driver.Outgoing{Message: newMessage(d.record, d.origin, d.waiting)}, d.origin)
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
	state := o.stateOf(d.record.Key)
	if state.has(d.origin.Position) { // catchUp found an earlier write of it
		o.lot.settle(offset)
		return true
	}
	state.parked = append(state.parked, parkedMessage{offset, d.origin.Position})
	o.keep(string(d.record.Key), state)
	return true
}

// block keeps a key stopped behind a dead letter, even across restarts.
func (o *keyOrder) block(key string, state *keyState, d *delivery) bool {
	r := &kgo.Record{
		Topic: o.topic, Partition: o.p.id, Key: []byte(key),
		Headers: append(originHeaders(d.origin), header(headerControl, controlLock)),
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

// continueKey handles the parked messages of a key until one of them has to wait again.
func (o *keyOrder) continueKey(key string) {
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
			err = errGone // another record is stored there: the topic was recreated, or lost its end
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
			d := &delivery{record: r, waiting: true, origin: o.p.sub.origin(r, "", true)}
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
