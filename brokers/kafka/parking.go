package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// parkingName is the topic in which messages wait behind an earlier one of their key.
func (b *transport) parkingName(topic, group string) string {
	return b.cfg.Naming.For(topic, group).Retry(0) + ".parked"
}

func (b *transport) parking(topic, group string, partitions int32) spec {
	return b.tier(b.parkingName(topic, group), 0, partitions)
}

// restore determines which keys are blocked before the first message of the topic is handled, from the parked messages
// and those in the retry topics. It may be called again after an error.
func (o *keyOrder) restore() error {
	sub, b, ctx := o.p.sub, o.p.sub.b, o.p.ctx
	o.keys = map[string]*keyState{}
	if err := sub.has(ctx, o.parking()); err != nil {
		return err
	}
	tiers, err := b.topics.list(ctx, 0, sub.tierPatterns...)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(tiers))
	wanted := []topicPartition{o.parking()}
	for _, name := range names {
		wanted = append(wanted, topicPartition{name, o.p.id})
	}
	positions, err := b.topics.committed(ctx, sub.q.Group, wanted)
	if err != nil {
		return err
	}
	for at := range positions {
		if slices.Contains(o.lost, at.topic) {
			positions[at] = position{offset: -1}
		}
	}
	f := b.fetcher(o.parking())
	f.moved = true
	if _, err := f.leader(ctx); err != nil {
		return err
	}
	at := positions[o.parking()].in(f.id)
	o.tracker = newTracker(at, math.MaxInt)
	f.epoch = o.tracker.epoch
	if err := o.readAll(f, at.offset, o.account); err != nil {
		return err
	}
	for _, at := range wanted[1:] {
		if err := sub.has(ctx, at); errors.Is(err, errNoPartition) {
			continue
		} else if err != nil {
			return err
		}
		from := positions[at].in(tiers[at.topic].id)
		settled, f := newTracker(from, 1), b.fetcher(at)
		f.epoch = settled.epoch
		if err := o.readAll(f, from.offset, func(r *kgo.Record) {
			if !settled.known(r) {
				o.remember(r)
			}
		}); err != nil {
			return fmt.Errorf("restore the order of keys: %w", err)
		}
	}
	for _, name := range names {
		sub.readTier(name, tiers[name])
	}
	o.p.account(o.topic, f.id, o.tracker)
	o.p.readers.Go(func() { o.follow(f) })
	return nil
}

// readAll reads a partition to its end. If that is before the group's position, the next call of restore reads it from
// its beginning.
func (o *keyOrder) readAll(f *fetcher, from int64, visit func(*kgo.Record)) error {
	err := f.all(o.p.ctx, from, visit)
	if errors.Is(err, errLostEnd) {
		o.lost = append(o.lost, f.topic)
	}
	return err
}

// remember records a message that waits for a retry of our group.
func (o *keyOrder) remember(r *kgo.Record) {
	_, retry := find(r.Headers, headerRetry)
	if !retry || r.Key == nil || o.p.sub.isForeign(r) {
		return
	}
	d := delivery{record: r, origin: o.p.sub.waitingOrigin(r, "")}
	o.stateOf(string(r.Key)).retrying[d.stage()] = placeOf(d.origin)
}

// account records a record of the parking topic. The caller holds mu, or is restoring.
func (o *keyOrder) account(r *kgo.Record) {
	if r.Offset < o.tracker.expects() {
		return // read twice
	}
	o.tracker.add(o.p.ctx, r) // the window has no bound
	if r.Key == nil || o.tracker.known(r) || o.p.sub.isForeign(r) {
		o.tracker.settle(r.Offset)
		return
	}
	state := o.stateOf(string(r.Key))
	m := parkedMessage{r.Offset, placeOf(o.p.sub.waitingOrigin(r, ""))}
	control, _ := find(r.Headers, headerControl)
	switch { // each may have been stored twice, around a crash, and a lock by a member with order-dead=block
	case control == controlLock && state.lock == nil && o.blocks:
		state.lock = &m
	case control != controlLock && !state.hasParked(m.place):
		state.parked = append(state.parked, m)
	default:
		o.tracker.settle(r.Offset)
		o.keep(string(r.Key), state)
	}
}

// follow accounts for the records that are added to the parking topic, until the partition is given up.
func (o *keyOrder) follow(f *fetcher) {
	o.p.readers.Go(o.resume)
	news := o.p.sub.b.news
	from := o.tracker.expects()
	for failures := 0; o.p.ctx.Err() == nil; {
		got, err := f.fetch(o.p.ctx, from)
		switch {
		case errors.Is(err, errMadeAgain), errors.Is(err, errLostEnd):
			o.restart(f.id)
			from = -1
			continue
		case err != nil:
			if failures++; failures == failuresLogged {
				o.p.sub.log.Warn("the parking topic cannot be read; trying again", "parking_topic", o.topic, "err", err)
			}
			sleep(o.p.ctx, asking.After(failures))
			continue
		}
		failures, from = 0, got.next
		if len(got.records) > 0 {
			o.add(got.records)
		}
		if from >= got.end && !news.wait(o.p.ctx, f.topicPartition, from) {
			return
		}
	}
}

// add accounts for records that were just read.
func (o *keyOrder) add(records []*kgo.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	free := false
	for _, r := range records {
		o.account(r)
		state := o.keys[string(r.Key)]
		free = free || state != nil && state.isFree()
	}
	o.announce()
	if free {
		o.p.readers.Go(o.resume)
	}
}

// announce wakes the callers that wait for the parking topic to be read. The caller holds mu.
func (o *keyOrder) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// restart forgets the parked messages, because the topic was deleted with everything in it, or has lost its end.
func (o *keyOrder) restart(id topicID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.p.sub.log.Error("the parking topic has lost its messages", "parking_topic", o.topic)
	o.tracker = newTracker(position{offset: 0, fresh: true}, math.MaxInt)
	o.p.account(o.topic, id, o.tracker)
	for key, state := range o.keys {
		state.parked, state.lock = nil, nil
		o.keep(key, state)
	}
	o.announce()
}

// resume continues with keys whose retry ended in another process before that could take the messages parked behind it.
func (o *keyOrder) resume() {
	o.mu.Lock()
	var free []string
	for key, state := range o.keys {
		if state.isFree() {
			free = append(free, key)
		}
	}
	o.mu.Unlock()
	for _, key := range free {
		if !o.p.keyed.submit(o.p.ctx, &delivery{record: &kgo.Record{Key: []byte(key)}, resume: true}) {
			return
		}
	}
}

// park moves a message behind others of its key. It returns when the message is in its place there, or reports false if
// the partition is given up first.
func (o *keyOrder) park(d *delivery) bool {
	r := newWaiting(o.topic, &driver.Outgoing{Message: d.message()}, d.origin)
	err := o.put(r, func(state *keyState) bool { return state.hasParked(placeOf(d.origin)) })
	if errors.Is(err, brokers.ErrTooLarge) {
		o.p.sub.log.Warn("a message is too large to be parked behind an earlier one of its key, and is handled at once",
			"position", d.origin.Position, "bytes", size(r), "err", err)
		return o.attempt(d)
	}
	return err == nil
}

// block holds back the later messages of a dead letter's key, even across restarts. It reports false if the partition
// is given up first.
func (o *keyOrder) block(d *delivery) bool {
	r := &kgo.Record{
		Topic: o.topic, Key: d.record.Key,
		Headers: append(originHeaders(d.origin), header(headerControl, controlLock)),
	}
	switch err := o.put(r, func(state *keyState) bool { return state.lock != nil }); {
	case errors.Is(err, errGivenUp):
		return false
	case err != nil:
		o.p.sub.log.Error("a dead letter cannot block its key, which continues", "position", d.origin.Position, "err", err)
	default:
		o.p.sub.log.Warn("a dead letter blocks its key; redrive it, or call Release", "position", d.origin.Position)
	}
	return true
}

// errGivenUp means that the partition was given up before a record was stored.
var errGivenUp = errors.New("the partition is given up")

// put writes a record to the parking topic and waits until follow has read it, which accounted reports, or leaves that
// to the next owner. The error is errGivenUp, or wraps brokers.ErrTooLarge.
func (o *keyOrder) put(r *kgo.Record, accounted func(*keyState) bool) error {
	topics, log := o.p.sub.b.topics, o.p.sub.log
	for n := 1; ; n++ {
		sent := renew(r) // after an error the client may still use it
		sent.Partition = o.p.id
		o.mu.Lock()
		lot := o.tracker
		o.mu.Unlock()
		err := o.store(sent)
		switch {
		case err == nil && o.waitFor(string(r.Key), lot, accounted):
			return nil
		case err == nil && o.p.ctx.Err() != nil:
			return errGivenUp
		case err == nil: // the topic was deleted
			continue
		case errors.Is(err, brokers.ErrTooLarge):
			return err
		}
		log.Warn("a message cannot be parked behind an earlier one of its key; trying again", "parking_topic", o.topic,
			"err", err)
		if errors.Is(err, brokers.ErrUnroutable) {
			topics.forget(o.topic)
			_ = o.p.sub.has(o.p.ctx, o.parking()) // the next try reports its error
		}
		if errors.Is(err, brokers.ErrClosed) || !sleep(o.p.ctx, retrying.After(n)) {
			return errGivenUp
		}
	}
}

// store writes a record to the parking topic. The partition's context does not bound it: it must be known whether the
// record is stored, since an abandoned one would precede those that the next owner parks.
func (o *keyOrder) store(r *kgo.Record) error {
	b := o.p.sub.b
	ctx, cancel := context.WithTimeoutCause(context.Background(), b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	if err := errors.Join(b.waits.send(ctx, []*kgo.Record{r})...); err != nil {
		return err
	}
	b.news.arrived(o.parking())
	return nil
}

// waitFor returns true when follow has read a record that was stored, and false if the topic that lot belongs to was
// deleted. If the partition is given up, the next owner reads the record before it handles anything, so it is in its
// place: if it were not settled where it came from, it would be handled twice.
func (o *keyOrder) waitFor(key string, lot *tracker, accounted func(*keyState) bool) bool {
	for {
		o.mu.Lock()
		state := o.keys[key]
		read, current, changed := state != nil && accounted(state), o.tracker == lot, o.changed
		o.mu.Unlock()
		if read || !current {
			return read
		}
		select {
		case <-changed:
		case <-o.p.ctx.Done():
			return true
		}
	}
}

// Release lets a key continue that a dead letter blocks with order-dead=block, if the dead letter will not be redriven.
// It returns when the request is durable. After an error, the key may continue nevertheless; call it again.
func (b *Broker) Release(ctx context.Context, topic, group string, key []byte) error {
	t := b.t
	ctx, cancel := context.WithTimeoutCause(ctx, t.cfg.PublishTimeout, t.overdue)
	defer cancel()
	// To all partitions: partitions may have been added since, and the key is blocked on the one that it had.
	partitions, err := t.topics.including(ctx, t.source(topic), math.MaxInt32)
	headers := originHeaders(&envelope.Origin{Topic: topic, Consumer: group})
	headers = append(headers, header(headerControl, controlRelease))
	var records []outgoing
	for p := range partitions {
		r := &kgo.Record{Topic: t.retryName(topic, group, nowTier), Partition: p, Key: key, Headers: headers}
		records = append(records, outgoing{Record: r, source: topic, wait: nowTier})
	}
	if err := errors.Join(append(t.store(ctx, records), err)...); err != nil {
		return fmt.Errorf("kafka: release a key of group %s on topic %s: %w", group, topic, err)
	}
	return nil
}
