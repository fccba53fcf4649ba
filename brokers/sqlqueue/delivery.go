package sqlqueue

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// ErrLeaseLost says that this process was out of touch with the database for so long that another worker has taken the
// message over. The context of its handler is cancelled with this cause, and what the handler does about the message here
// has no effect.
var ErrLeaseLost = errors.New("the message's lease is lost to another worker")

// unreadableHeaders holds the text of a headers column that somebody has damaged.
const unreadableHeaders = "x-unreadable-headers"

// delivery is a row that this process has the lease of, from the claim until the database knows how it ended.
type delivery struct {
	context.Context // of the subscription, for Value
	row             claimed
	subscription    *subscription
	from            envelope.Origin

	stored chan struct{} // of a suspect: closed when the database knows how it ended

	mu      sync.Mutex
	expires time.Time // of the lease, by this process's clock, counted from before the database began to count
	cancel  context.CancelCauseFunc
	uuid    string
	// settled says that somebody decides, or has decided, on the row's fate: nobody else may.
	settled bool
	// leaving says that the row is being given back to the queue: from now on it may be claimed again, also by this process,
	// before whoever gives it back has heard from the database.
	leaving bool
	// lost says that the row is another worker's, while the handler here may still be running.
	lost bool
	// left says that the answer is counted for the lease that the row shares. leases.mu guards it.
	left bool
	// answered is the handler's answer, when it came while somebody else was deciding.
	answered *outcome
}

type deliveryKey struct{}

// Value makes a delivery the context that carries it: one allocation less for every message.
func (d *delivery) Value(key any) any {
	if key == (deliveryKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// message makes the Watermill message. Its context ends when the delivery is settled or its lease is lost.
func (d *delivery) message(ctx context.Context) *message.Message {
	m, err := d.row.message()
	if err != nil {
		// The payload may be fine, and the dead letters are the place to look at this.
		m = message.NewMessage(d.row.uuid, d.row.payload)
		m.Metadata.Set(unreadableHeaders, d.row.headers)
	}
	d.Context, d.from = ctx, d.origin()
	withOrigin, cancel := context.WithCancelCause(envelope.WithOrigin(d, &d.from))
	m.SetContext(withOrigin) //nolint:contextcheck // d inherits from ctx

	d.mu.Lock()
	defer d.mu.Unlock()
	d.cancel, d.uuid = cancel, m.UUID
	return m
}

func (d *delivery) origin() envelope.Origin {
	s := d.subscription
	return envelope.Origin{
		Broker:        s.broker.scheme,
		Topic:         s.topic,
		Consumer:      s.group,
		Offset:        &d.row.id,
		Position:      strconv.FormatInt(d.row.id, 10),
		Timestamp:     time.UnixMicro(d.row.publishedAt).UTC(),
		Redelivered:   d.row.deliveries > 1,
		DeliveryCount: d.row.deliveries,
	}
}

// settle gives the caller the right to decide on the row, unless somebody has it or the row is lost.
func (d *delivery) settle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.settled || d.lost {
		return false
	}
	d.settled = true
	return true
}

// answer is settle for the handler's answer. It also reports whether the delivery is to be forgotten, because it is lost.
func (d *delivery) answer(o outcome) (decides, forget bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.lost:
		return false, true
	case d.settled:
		late := o
		d.answered = &late
		return false, false
	}
	d.settled, d.leaving = true, o.kind != acked
	return true, false
}

// leave says that the row is about to be given back to its queue by somebody who has the right to.
func (d *delivery) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = true
}

// isLeaving tells whether the row, if it is claimed again, is a new delivery.
func (d *delivery) isLeaving() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaving
}

// unsettle gives the right back: what the caller tried has failed. It returns the answer that came meanwhile, which then
// decides.
func (d *delivery) unsettle() *outcome {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = d.answered != nil
	d.leaving = d.settled && d.answered.kind != acked
	return d.answered
}

// lose marks the row as another worker's and cancels the handler, unless somebody is deciding on it, who will find out.
// The delivery is kept until the handler answers, so that a second attempt to reschedule makes no second message.
func (d *delivery) lose() (marked bool) {
	d.mu.Lock()
	if !d.settled {
		d.lost, marked = true, true
	}
	d.mu.Unlock()
	if marked {
		d.end(ErrLeaseLost)
	}
	return marked
}

// leased names the row and the lease it came with.
func (d *delivery) leased() leased { return leased{d.row.id, d.row.batch} }

// revive gives a row back to the handler that still works on it: nobody else had taken it, or is done with it.
func (d *delivery) revive(expires time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost, d.expires = false, expires
}

// isLost tells whether the row is another worker's.
func (d *delivery) isLost() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

// end ends the message's context.
func (d *delivery) end(cause error) {
	d.mu.Lock()
	cancel := d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

func (d *delivery) leaseEnd() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.expires
}

func (d *delivery) extend(until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expires = until
}

// carries tells whether m is the message of this delivery, or a copy of it.
func (d *delivery) carries(m *message.Message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uuid == m.UUID
}
