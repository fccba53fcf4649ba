package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/envelope"
)

// restore learns what holds keys back before the first message of the topic is handled: what is parked, and what waits
// in the retry topics.
func (o *order) restore() error {
	sub := o.p.sub
	tiers, err := sub.b.topics.list(sub.kinds...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(o.p.ctx)
	defer cancel()
	names := append(sortedTopics(tiers), o.topic)
	positions, err := committed(ctx, sub.b.own, sub.cfg.Group, names, o.p.id)
	if err != nil {
		return err
	}
	if err := o.restoreParked(ctx, positions[o.topic]); err != nil {
		return err
	}
	for _, name := range names[:len(names)-1] {
		if err := sub.has(name, o.p.id); errors.Is(err, errNoPartition) {
			continue
		} else if err != nil {
			return err
		}
		at := newTracker(positions[name], 1)
		f := fetcher{client: sub.reader, topic: name, partition: o.p.id}
		if err := f.all(ctx, positions[name].offset, func(r *sarama.ConsumerMessage) {
			if !at.known(r.Offset) {
				o.remember(r)
			}
		}); err != nil {
			return fmt.Errorf("restore the order of keys: %w", err)
		}
		sub.readTier(name, tiers[name])
	}
	o.p.account(o.topic, o.lot)
	o.p.pumps.Go(o.keepStoring)
	o.p.pumps.Go(o.resume)
	return nil
}

// remember notes a message that waits for a retry of our group.
func (o *order) remember(r *sarama.ConsumerMessage) {
	whose, _ := find(r.Headers, envelope.KeyConsumer)
	_, retry := find(r.Headers, headerRetry)
	if whose != o.p.sub.cfg.Group || !retry || r.Key == nil {
		return
	}
	state := o.stateOf(r.Key)
	state.retrying[readOrigin(r, o.p.sub.topic, whose, true).Position] = struct{}{}
}

func (o *order) stateOf(key []byte) *keyState {
	state := o.keys[string(key)]
	if state == nil {
		state = &keyState{retrying: map[string]struct{}{}}
		o.keys[string(key)] = state
	}
	return state
}

func (o *order) restoreParked(ctx context.Context, at position) error {
	waiting, end := unpackNote(at)
	o.lot = newParked(max(at.offset, 0))
	return o.reader.all(ctx, at.offset, func(r *sarama.ConsumerMessage) {
		if _, ok := waiting[r.Offset]; !ok && r.Offset < end || r.Key == nil {
			o.lot.pass(r.Offset)
			return
		}
		m := parkedMessage{r.Offset, readOrigin(r, o.p.sub.topic, o.p.sub.cfg.Group, true).Position}
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
	})
}

func (k *keyState) has(position string) bool {
	for _, m := range k.parked {
		if m.position == position {
			return true
		}
	}
	return false
}

// resume lets keys go on whose retry ended in another process, before that could take what was parked behind.
func (o *order) resume() {
	o.mu.Lock()
	var free []string
	for key, state := range o.keys {
		if len(state.retrying) == 0 && state.lock == nil {
			free = append(free, key)
		}
	}
	o.mu.Unlock()
	for _, key := range free {
		if !o.p.lanes.take(o.p.ctx, &delivery{record: &sarama.ConsumerMessage{Key: []byte(key)}, resume: true}) {
			return
		}
	}
}
