package sqlqueue

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// ErrLeaseLost means that this process could not reach the database for so long that another worker has taken over the
// message. The context of its handler is cancelled with this cause, and the outcome of the handler here has no effect.
var ErrLeaseLost = fmt.Errorf("%w: another worker has its lease", driver.ErrLost)

// unreadableHeaders holds the text of a damaged headers column.
const unreadableHeaders = "x-unreadable-headers"

// delivery is a row leased by this process, from the claim until the database has recorded its outcome.
type delivery struct {
	row     claimed
	stream  *stream
	counted atomic.Bool // it is no longer outstanding

	mu      sync.Mutex
	uuid    string                  // of the message
	expires time.Time               // of the lease, by this process's clock, counted from before the statement was sent
	cancel  context.CancelCauseFunc // of the handler's context; nil until it begins
	state   rowState
	// leaving means that the row is being returned to the queue: it may be claimed again, even by this process, before
	// the caller that returns it has the database's answer.
	leaving bool
	// left means that the row no longer counts for the lease that it shares. Guarded by leases.mu.
	left bool
}

// rowState is what this process may still do with a row.
type rowState uint8

const (
	rowOpen     rowState = iota
	rowDeciding          // the ack or nack, the handler's transaction, or the retry is being recorded
	rowDecided           // the database has recorded it
	rowLost              // the row is another worker's, although the handler here may still be running
)

// deliveryKey is the key of the delivery in its handler's context.
type deliveryKey struct{}

// describe returns the delivery for the engine.
func (d *delivery) describe() driver.Delivery {
	row := &d.row
	m := d.message()
	d.mu.Lock()
	d.uuid = m.UUID
	d.mu.Unlock()
	held := driver.Delivery{Message: m, Token: d, Suspect: row.crashes, Earlier: row.deliveries - 1}
	o := &held.Origin
	// Ids start over when the table is emptied, positions never do.
	o.Offset, o.Position = &row.id, strconv.FormatInt(row.id, 10)+"/"+strconv.FormatInt(row.publishedAt, 36)
	o.Timestamp = time.UnixMicro(row.publishedAt).UTC()
	o.Redelivered, o.DeliveryCount = row.deliveries > 1, row.deliveries
	return held
}

// carries reports whether the delivery belongs to the message.
func (d *delivery) carries(uuid string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uuid == uuid
}

// message returns the message as it was stored.
func (d *delivery) message() *message.Message {
	m, err := d.row.message()
	if err != nil {
		// The payload may be intact, and the dead letters are the place to inspect it.
		m = message.NewMessage(d.row.uuid, d.row.payload)
		m.Metadata.Set(unreadableHeaders, d.row.headers)
	}
	return m
}

// begin returns the context of d's handler.
func (d *delivery) begin(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	d.mu.Lock()
	d.cancel = cancel
	gone := d.state == rowLost
	d.mu.Unlock()
	if gone {
		cancel(ErrLeaseLost)
	}
	return context.WithValue(ctx, deliveryKey{}, d)
}

// finished ends the handler's context, and makes room for another row.
func (d *delivery) finished() {
	d.end(context.Canceled)
	if d.counted.Swap(true) {
		return
	}
	s := d.stream
	s.handled.Add(1)
	s.outstanding.Add(-1)
	if s.free() > 0 {
		wait.Signal(s.need)
	}
}

// decide gives the decision on the row to the caller if its state is open, and returns the previous state. leaving
// means that the caller returns the row to the queue.
func (d *delivery) decide(leaving bool) (was rowState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was = d.state; was == rowOpen {
		d.state, d.leaving = rowDeciding, leaving
	}
	return was
}

// decided ends a decision: either the database has recorded it, or it has failed and the state is open again.
func (d *delivery) decided(to rowState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state, d.leaving = to, d.leaving && to != rowOpen
}

// isLeaving reports whether the row is a new delivery when it is claimed again.
func (d *delivery) isLeaving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaving
}

// lose marks the row as another worker's and cancels the handler, unless a decision is in progress, which will find
// out. The delivery is kept until it is settled, so that rescheduling it again does not create a second message.
func (d *delivery) lose() (marked bool) {
	d.mu.Lock()
	if d.state == rowOpen {
		d.state, marked = rowLost, true
	}
	d.mu.Unlock()
	if marked {
		d.end(ErrLeaseLost)
	}
	return marked
}

// revive gives a row back to the handler that still works on it: no other worker has claimed it meanwhile, or one has
// released it.
func (d *delivery) revive(expires time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == rowLost {
		d.state = rowOpen
	}
	d.expires = expires
}

// end ends the handler's context.
func (d *delivery) end(cause error) {
	d.mu.Lock()
	cancel := d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// lease returns its end, and whether it is this process's.
func (d *delivery) lease() (ends time.Time, ours bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expires, d.state != rowLost
}

func (d *delivery) extend(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expires = until
}

// leased names the row and its lease.
func (d *delivery) leased() leased { return leased{d.row.id, d.row.batch} }
