package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
)

// store writes a record to the parking topic and counts it as waiting there. Records of several keys share a request;
// their offsets are counted before the next request begins, so that no position is ever stored that passes over one.
func (o *order) store(r *kgo.Record) (int64, bool) {
	req := parkRequest{r, make(chan int64, 1)}
	select {
	case o.parks <- req:
	case <-o.p.ctx.Done():
		return 0, false
	}
	offset, ok := <-req.stored
	return offset, ok
}

// keepStoring serves store until the partition is given up.
func (o *order) keepStoring() {
	for {
		var batch []parkRequest
		select {
		case req := <-o.parks:
			batch = append(batch, req)
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

func (o *order) write(batch []parkRequest) {
	records := make([]*kgo.Record, len(batch))
	for i, req := range batch {
		records[i] = req.record
	}
	b := o.p.sub.b
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		// Not bounded by the partition's context: whether the records are stored must be known, else an abandoned one
		// would lie in front of what the next owner parks.
		ctx, cancel := context.WithTimeoutCause(context.Background(), b.cfg.PublishTimeout, b.overdue)
		err := b.waits.send(ctx, records...)
		cancel()
		if err == nil {
			break
		}
		o.p.sub.log.Warn("messages cannot be parked behind an earlier one of their key; trying again", "parking_topic", o.topic, "err", err)
		if errors.Is(err, brokers.ErrClosed) || !sleep(o.p.ctx, pause) {
			for _, req := range batch {
				close(req.stored)
			}
			return
		}
		for i, r := range records { // the client may still hold the old ones
			records[i] = &kgo.Record{Topic: r.Topic, Partition: o.p.id, Key: r.Key, Value: r.Value, Headers: r.Headers}
		}
	}
	for i, req := range batch {
		o.lot.add(records[i].Offset)
		req.stored <- records[i].Offset
	}
}
