package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// restore determines which keys are blocked before the first message of the topic is handled, from the parked messages
// and those in the retry topics. It may be called again after an error.
func (o *keyOrder) restore() error {
	sub, b, ctx := o.p.sub, o.p.sub.b, o.p.ctx
	o.keys = map[string]*keyState{}
	if err := o.ensureParking(ctx); err != nil {
		return err
	}
	tiers, err := b.topics.list(ctx, 0, sub.kinds...)
	if err != nil {
		return err
	}
	names := sortedTopics(tiers)
	wanted := []topicPartition{o.reader.topicPartition}
	for _, name := range names {
		wanted = append(wanted, topicPartition{name, o.p.id})
	}
	positions, err := committed(ctx, b.own, sub.q.Group, wanted)
	if err != nil {
		return err
	}
	o.reader.moved = true
	if _, err := o.reader.leader(ctx); err != nil {
		return err
	}
	if err := o.restoreParked(ctx, positions[o.reader.topicPartition].in(o.reader.id)); err != nil {
		return err
	}
	for _, at := range wanted[1:] {
		if err := sub.has(ctx, at); errors.Is(err, errNoPartition) {
			continue
		} else if err != nil {
			return err
		}
		from := positions[at].in(tiers[at.topic].id)
		settled := newTracker(from, 1)
		if err := b.fetcher(at).all(ctx, from.offset, func(r *kgo.Record) {
			if !settled.known(r.Offset) {
				o.remember(r)
			}
		}); err != nil {
			return fmt.Errorf("restore the order of keys: %w", err)
		}
	}
	for _, name := range names {
		sub.readTier(name, tiers[name])
	}
	o.p.account(o.topic, o.reader.id, o.lot)
	o.p.readers.Go(o.keepStoring)
	o.p.readers.Go(o.resume)
	return nil
}

// ensureParking makes sure that the parking topic has the partition.
func (o *keyOrder) ensureParking(ctx context.Context) error {
	b, sub := o.p.sub.b, o.p.sub
	partitions, err := b.topics.including(ctx, b.source(sub.q.Topic), o.p.id)
	if err != nil {
		return err
	}
	lot := b.parking(sub.q.Topic, sub.q.Group, partitions)
	switch have, _, err := b.topics.ensure(ctx, lot); {
	case err != nil:
		return err
	case have <= o.p.id:
		return fmt.Errorf("topic %s (%s) has %d partitions and its source has %d: add partitions to it", lot.name,
			lot.purpose, have, partitions)
	}
	return nil
}

// remember records a message that waits for a retry of our group.
func (o *keyOrder) remember(r *kgo.Record) {
	whose, _ := find(r.Headers, envelope.KeyConsumer)
	_, retry := find(r.Headers, headerRetry)
	if whose != o.p.sub.q.Group || !retry || r.Key == nil {
		return
	}
	state := o.stateOf(r.Key)
	d := delivery{record: r, origin: o.p.sub.origin(r, "", true)}
	state.retrying[d.stage()] = d.origin.Position
}

func (o *keyOrder) stateOf(key []byte) *keyState {
	state := o.keys[string(key)]
	if state == nil {
		state = &keyState{retrying: map[string]string{}}
		o.keys[string(key)] = state
	}
	return state
}

func (o *keyOrder) restoreParked(ctx context.Context, at position) error {
	waiting, end := unpackNote(at)
	o.lot = newParked(max(at.offset, 0))
	return o.reader.all(ctx, at.offset, func(r *kgo.Record) {
		_, waits := waiting[r.Offset]
		o.processParked(r, !waits && r.Offset < end)
	})
}

// processParked processes a record of the parking topic, given whether it is settled. The caller holds mu, or is
// restoring.
func (o *keyOrder) processParked(r *kgo.Record, settled bool) {
	if settled || r.Key == nil {
		o.lot.pass(r.Offset)
		return
	}
	m := parkedMessage{r.Offset, o.positionOf(r)}
	state := o.stateOf(r.Key)
	switch control, _ := find(r.Headers, headerControl); {
	case control == controlLock:
		state.lock = &m
		o.lot.add(r.Offset)
	case state.has(m.position):
		o.lot.pass(r.Offset) // parked twice, around a crash
	default:
		state.parked = append(state.parked, m)
		o.lot.add(r.Offset)
	}
}

// catchUp reads the records between the known ones and one that was just stored: another member parked them, or our own
// unanswered write. None may be skipped.
func (o *keyOrder) catchUp(to int64) bool {
	f := o.p.sub.b.fetcher(o.reader.topicPartition)
	for offset := o.lot.seen(); offset < to; offset++ {
		r, err := f.at(o.p.ctx, offset)
		if err != nil && !errors.Is(err, errGone) {
			return false // given up, or the topic was recreated
		}
		o.mu.Lock()
		if err == nil {
			o.processParked(r, false)
		} else {
			o.lot.pass(offset)
		}
		o.mu.Unlock()
	}
	return true
}

func (k *keyState) has(position string) bool {
	return slices.ContainsFunc(k.parked, func(m parkedMessage) bool { return m.position == position })
}

// resume continues with keys whose retry ended in another process before that could take the messages parked behind it.
func (o *keyOrder) resume() {
	o.mu.Lock()
	var free []string
	for key, state := range o.keys {
		if len(state.retrying) == 0 && state.lock == nil {
			free = append(free, key)
		}
	}
	o.mu.Unlock()
	for _, key := range free {
		if !o.p.keyed.take(o.p.ctx, &delivery{record: &kgo.Record{Key: []byte(key)}, resume: true}) {
			return
		}
	}
}
