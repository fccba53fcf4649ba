package kafka

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/redrive-go/redrive/envelope"
)

// keyOrder keeps the messages of a key in order across retries, for one partition. While a message waits for its retry,
// later ones of its key are moved to the same partition of a parking topic, and are taken from it when the retry has
// ended. Memory holds only offsets: follow reads the topic and accounts for all its records, including those that
// another member or an unanswered request of ours has stored. The executor calls handle for one message of a key at a
// time.
type keyOrder struct {
	p      *partition
	topic  string
	blocks bool // order-dead=block

	mu      sync.Mutex
	tracker *tracker // of the parking topic
	keys    map[string]*keyState
	lost    []string      // topics that end before the group's position
	changed chan struct{} // closed when more of the parking topic has been read

	reader struct { // of parked messages
		sync.Mutex
		*fetcher
	}
}

// keyState is what blocks a key.
type keyState struct {
	retrying map[string]place // by the stage of a waiting retry, the place of its message
	parked   []parkedMessage  // in order
	lock     *parkedMessage   // the record of a dead letter that blocks the key, with order-dead=block
}

type parkedMessage struct {
	offset int64 // in the parking topic
	place
}

// place identifies a message by its place on the main topic. Positions start over when that is recreated, while
// messages of the deleted one still wait.
type place struct{ position, incarnation string }

func placeOf(o *envelope.Origin) place { return place{o.Position, o.Incarnation} }

// is reports whether both are the same place, as far as is known: before Kafka 2.8 topics have no incarnation.
func (p place) is(other place) bool {
	return p.position == other.position &&
		(p.incarnation == other.incarnation || p.incarnation == "" || other.incarnation == "")
}

func newKeyOrder(p *partition) *keyOrder {
	q := &p.sub.q
	o := &keyOrder{
		p: p, topic: p.sub.b.parkingName(q.Topic, q.Group), blocks: q.Params.String("order-dead") == "block",
		changed: make(chan struct{}),
	}
	o.reader.fetcher = p.sub.b.fetcher(o.parking())
	return o
}

func (o *keyOrder) parking() topicPartition { return topicPartition{o.topic, o.p.id} }

// handle runs for one message of a key at a time.
func (o *keyOrder) handle(d *delivery) {
	key := string(d.record.Key)
	switch {
	case d.resume:
		o.continueKey(key)
	case d.release:
		o.unlock(key)
		d.settle()
		o.continueKey(key)
	case d.record.Key == nil: // nothing to keep in order
		if _, acked := o.p.deliver(d); acked {
			d.settle()
		}
	case d.isRetry():
		if o.attempt(d) {
			d.settle()
			o.continueKey(key)
		}
	case !o.isHeld(key):
		if o.attempt(d) {
			d.settle()
		}
	case o.holds(key, placeOf(d.origin)) || o.park(d):
		d.settle()
	}
}

// attempt dispatches a message and records its outcome. It reports false if the partition was given up first.
func (o *keyOrder) attempt(d *delivery) bool {
	ended, acked := o.p.deliver(d)
	if !acked {
		return false
	}
	key := string(d.record.Key)
	died := ended.dead && len(ended.retries) == 0
	o.mu.Lock()
	state := o.stateOf(key)
	delete(state.retrying, d.stage())
	for _, stage := range ended.retries {
		state.retrying[stage] = placeOf(d.origin)
	}
	redriven := state.isLockedBy(placeOf(d.origin)) && !ended.skipped && !ended.dead && len(ended.retries) == 0
	block := died && state.lock == nil && o.blocks
	o.keep(key, state)
	o.mu.Unlock()
	if redriven {
		o.unlock(key)
	}
	return !block || o.block(d)
}

// unlock lets a key continue that a dead letter blocks.
func (o *keyOrder) unlock(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[key]
	if state == nil || state.lock == nil {
		return
	}
	o.tracker.settle(state.lock.offset)
	state.lock = nil
	o.keep(key, state)
}

// stateOf returns the state of a key. The caller holds mu, or is restoring.
func (o *keyOrder) stateOf(key string) *keyState {
	state := o.keys[key]
	if state == nil {
		state = &keyState{retrying: map[string]place{}}
		o.keys[key] = state
	}
	return state
}

// keep forgets a state that blocks nothing. The caller holds mu.
func (o *keyOrder) keep(key string, state *keyState) {
	if state.isFree() && len(state.parked) == 0 {
		delete(o.keys, key)
	}
}

func (o *keyOrder) isHeld(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.keys[key] != nil
}

// holds reports whether the message at a place of the main topic waits already: it was moved aside, and the process
// ended before its offset was committed.
func (o *keyOrder) holds(key string, at place) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := o.keys[key]
	return state != nil && (state.hasParked(at) || state.isLockedBy(at) ||
		slices.ContainsFunc(slices.Collect(maps.Values(state.retrying)), at.is))
}

func (k *keyState) hasParked(at place) bool {
	return slices.ContainsFunc(k.parked, func(m parkedMessage) bool { return m.is(at) })
}

func (k *keyState) isLockedBy(at place) bool { return k.lock != nil && k.lock.is(at) }

// isFree reports whether nothing holds back the parked messages of the key.
func (k *keyState) isFree() bool { return len(k.retrying) == 0 && k.lock == nil }

// continueKey handles the parked messages of a key until one of them has to wait again.
func (o *keyOrder) continueKey(key string) {
	for {
		o.mu.Lock()
		state := o.keys[key]
		if state == nil || len(state.parked) == 0 || !state.isFree() {
			o.mu.Unlock()
			return
		}
		first, lot := state.parked[0], o.tracker
		o.mu.Unlock()

		d, err := o.readParked(first)
		switch {
		case errors.Is(err, errMadeAgain):
			continue
		case errors.Is(err, errGone):
			o.p.sub.log.Error("a parked message is gone from its topic", "parking_topic", o.topic, "offset", first.offset)
		case err != nil || !o.attempt(d):
			return // given up; the next owner continues
		}
		o.mu.Lock()
		if lot == o.tracker { // the topic was not recreated in the meantime
			state.parked = state.parked[1:]
			o.keep(key, state)
			lot.settle(first.offset)
		}
		o.mu.Unlock()
	}
}

func (o *keyOrder) readParked(m parkedMessage) (*delivery, error) {
	o.reader.Lock()
	defer o.reader.Unlock()
	r, err := o.reader.at(o.p.ctx, m.offset)
	if err != nil {
		return nil, err
	}
	d := &delivery{record: r, waiting: true, origin: o.p.sub.waitingOrigin(r, "")}
	if !m.is(placeOf(d.origin)) {
		return nil, errGone // another record is stored there: the topic was recreated, or lost its end
	}
	return d, nil
}

// keyedExecutor runs the deliveries of one partition: at most n at once, those of one key one after the other in the
// given order, and with n = 1 all of them. Deliveries without a key are not ordered if n > 1.
type keyedExecutor struct {
	n   int
	run func(*delivery)

	slots   chan struct{}
	running sync.WaitGroup

	mu   sync.Mutex
	busy map[string][]*delivery // keys in flight, with the deliveries waiting behind them
}

// submit accepts a delivery. It blocks while n deliveries run, and reports false if ctx ended first.
func (e *keyedExecutor) submit(ctx context.Context, d *delivery) bool {
	if e.n > 1 && d.record.Key != nil && e.queue(d) {
		return true
	}
	select {
	case e.slots <- struct{}{}:
	case <-ctx.Done(): // the partition is given up: d stays unsettled, like those that are queued behind it
		return false
	}
	if e.n == 1 {
		// In the caller: a goroutine per message would only cost, and the reader would run ahead for nothing.
		e.run(d)
		<-e.slots
		return true
	}
	e.running.Go(func() {
		for d != nil {
			e.run(d)
			d = e.following(d)
		}
		<-e.slots
	})
	return true
}

// queue puts d behind the one of its key that is in flight, or marks the key as busy.
func (e *keyedExecutor) queue(d *delivery) (behind bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(d.record.Key)
	waiting, behind := e.busy[key]
	if behind {
		e.busy[key] = append(waiting, d)
		return true
	}
	e.busy[key] = nil
	return false
}

// following returns the next delivery of the key, or frees the key.
func (e *keyedExecutor) following(d *delivery) *delivery {
	if d.record.Key == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := string(d.record.Key)
	waiting := e.busy[key]
	if len(waiting) == 0 {
		delete(e.busy, key)
		return nil
	}
	e.busy[key] = waiting[1:]
	return waiting[0]
}

// wait returns when nothing runs any more. submit must not be called after it, except by running deliveries.
func (e *keyedExecutor) wait() {
	e.running.Wait()
	for range e.n {
		e.slots <- struct{}{}
	}
}
