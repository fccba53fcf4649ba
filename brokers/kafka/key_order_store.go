package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
)

// store writes a record to the parking topic and counts it as waiting there. Records of several keys share a request;
// their offsets are counted before the next request begins, so that no stored position ever skips one.
func (o *keyOrder) store(r *kgo.Record) (int64, bool) {
	req := parkRequest{r, make(chan int64, 1)}
	select {
	case o.parks <- req:
	case <-o.p.ctx.Done():
		return 0, false
	}
	offset, ok := <-req.stored
	return offset, ok
}

// keepStoring serves store until the partition is given up. From time to time it checks whether the topic has records
// that neither it nor restore has seen, in case no later record reveals them.
func (o *keyOrder) keepStoring() {
	wait := time.Second
	look := time.NewTimer(wait)
	defer look.Stop()
	for {
		var batch []parkRequest
		select {
		case req := <-o.parks:
			batch = append(batch, req)
		case <-look.C:
			end, err := o.p.sub.b.topics.bound(o.p.ctx, o.reader.topicPartition, offsetNewest)
			if err == nil && end > o.lot.seen() && o.catchUp(end) {
				o.p.readers.Go(o.resume)
			}
			wait = min(2*wait, lookEvery)
			look.Reset(wait)
			continue
		case <-o.p.ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case req := <-o.parks:
				batch = append(batch, req)
			default:
				more = false
			}
		}
		o.write(batch)
	}
}

// restart forgets the parked messages, because the topic was deleted with everything in it.
func (o *keyOrder) restart() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.p.sub.log.Error("the parking topic was deleted with its messages", "parking_topic", o.topic)
	o.lot.restart()
	o.p.account(o.topic, topicID{}, o.lot)
	for _, state := range o.keys {
		state.parked, state.lock = nil, nil
	}
}

// noRoom represents the offset of a record that is too large for the topic.
const noRoom = -1

func refuse(batch []parkRequest) {
	for _, req := range batch {
		close(req.stored)
	}
}

func (o *keyOrder) write(batch []parkRequest) {
	records := make([]*kgo.Record, len(batch))
	for i, req := range batch {
		records[i] = req.record
	}
	b := o.p.sub.b
	for n := 1; ; n++ {
		// Not bounded by the partition's context: it must be known whether the records are stored, since an abandoned one
		// would precede those that the next owner parks.
		ctx, cancel := context.WithTimeoutCause(context.Background(), b.cfg.PublishTimeout, b.overdue)
		err := errors.Join(b.waits.send(ctx, records)...)
		cancel()
		if err == nil {
			break
		}
		o.p.sub.log.Warn("messages cannot be parked behind an earlier one of their key; trying again", "parking_topic",
			o.topic, "err", err)
		if errors.Is(err, brokers.ErrTooLarge) && len(batch) > 1 {
			for _, req := range batch { // find the one at fault
				o.write([]parkRequest{req})
			}
			return
		}
		if errors.Is(err, brokers.ErrTooLarge) {
			batch[0].stored <- noRoom
			return
		}
		if errors.Is(err, brokers.ErrClosed) || !sleep(o.p.ctx, retrying.After(n)) {
			refuse(batch)
			return
		}
		if errors.Is(err, brokers.ErrUnroutable) {
			o.p.sub.b.topics.forget(o.topic)
			if err := o.ensureParking(o.p.ctx); err == nil {
				o.restart()
			}
		}
		for i, r := range records { // the client may still hold the old ones
			records[i] = &kgo.Record{Topic: r.Topic, Partition: o.p.id, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
	}
	caughtUp := false
	for i, req := range batch {
		if records[i].Offset > o.lot.seen() {
			caughtUp = true
			if !o.catchUp(records[i].Offset) {
				refuse(batch[i:])
				return
			}
		}
		o.lot.add(records[i].Offset)
		req.stored <- records[i].Offset
	}
	if caughtUp {
		o.p.readers.Go(o.resume)
	}
}
