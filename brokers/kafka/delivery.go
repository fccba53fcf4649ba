package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/envelope"
)

// delivery is one record on its way to a handler.
type delivery struct {
	record  *kgo.Record
	waiting bool // read from a retry topic
	origin  *envelope.Origin

	release bool // not a message: its key may go on after a dead letter
	resume  bool // not a message: its key may have parked messages to go on with

	tracker *tracker
	mark    *tracked
}

// settle says that nothing more has to be done for the record.
func (d *delivery) settle() {
	if d.tracker != nil {
		d.tracker.settle(d.mark)
	}
}

// isRetry tells a retry from a message that waited for its first delivery.
func (d *delivery) isRetry() bool {
	_, retry := find(d.record.Headers, headerRetry)
	return d.waiting && retry
}

// longestPause bounds the pause before a nacked message comes back.
const longestPause = 5 * time.Second

// deliver hands the message out until a handler acks it. It reports false when the partition was given up first: then
// the record is not settled, and comes again to whoever gets the partition.
func (p *partition) deliver(d *delivery) (acked bool) {
	for pause := p.sub.nackPause; ; pause = min(2*pause, longestPause) {
		if p.ctx.Err() != nil {
			return false // and what follows in the lane does not overtake it
		}
		m := newMessage(d.record, d.origin, d.waiting)
		ctx, cancel := context.WithCancel(envelope.WithOrigin(p.sub.handlers, d.origin))
		m.SetContext(ctx)
		select {
		case p.sub.out <- m:
		case <-p.ctx.Done():
			cancel()
			return false
		}
		select {
		case <-m.Acked():
			cancel()
			return true
		case <-m.Nacked():
			cancel()
		case <-p.abandoned:
			cancel()
			return false
		}
		if !sleep(p.ctx, pause) {
			return false
		}
		again := *d.origin
		again.Redelivered = true
		d.origin = &again
	}
}

// sleep waits and reports true, or reports false as soon as ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
