package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// delivery is one record on its way to a handler.
type delivery struct {
	record  *kgo.Record
	waiting bool // read from a retry topic
	origin  *envelope.Origin

	tracker *tracker // of the topic that it was read from, nil for the parking topic

	resume bool               // not a message: its key may have parked messages to resume
	answer chan driver.Answer // with order=key: capacity 1
}

// settle marks the record as done.
func (d *delivery) settle() {
	if d.tracker != nil {
		d.tracker.settle(d.record.Offset)
	}
}

// isRetry distinguishes a retry from a message that waited for its first delivery.
func (d *delivery) isRetry() bool {
	_, retry := find(d.record.Headers, headerRetry)
	return d.waiting && retry
}

var (
	_ driver.Stream  = (*partition)(nil)
	_ driver.Renewer = (*partition)(nil)
)

// handedAhead is how many deliveries of a partition may wait for the engine.
const handedAhead = 32

// take passes a delivery to the handlers, in its turn. It reports false if the partition has to be given up.
func (p *partition) take(d *delivery) bool {
	if p.order != nil {
		return p.keyed.take(p.ctx, d)
	}
	return p.hand(d)
}

// hand passes a delivery to the engine.
func (p *partition) hand(d *delivery) bool {
	select {
	case p.due <- d:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// Next implements driver.Stream. It fails only when ctx ends: a partition is given up by its owner.
func (p *partition) Next(ctx context.Context) (driver.Delivery, error) {
	select {
	case d := <-p.due:
		given := driver.Delivery{Origin: *d.origin, Token: d}
		given.Message = newMessage(d.record, d.origin, d.waiting)
		if !d.waiting {
			delete(given.Message.Metadata, envelope.KeyStage) // foreign, on the topic itself
		}
		switch {
		case p.order != nil: // it waits for its turn
		case p.sub.q.Concurrency > 1 && d.record.Key != nil:
			given.Order = "k" + string(d.record.Key)
		}
		return given, nil
	case <-ctx.Done():
		return driver.Delivery{}, ctx.Err()
	}
}

// Renew implements driver.Renewer.
func (p *partition) Renew(given *driver.Delivery) *message.Message {
	d := given.Token.(*delivery)
	return newMessage(d.record, d.origin, d.waiting)
}

// Settle implements driver.Stream.
func (p *partition) Settle(_ context.Context, settled []driver.Settlement) []error {
	for _, s := range settled {
		switch d := s.Delivery.Token.(*delivery); {
		case d.answer != nil:
			d.answer <- s.Answer
		case s.Answer == driver.Ack:
			d.settle()
		}
	}
	return nil
}

// Close implements driver.Stream: giveUp commits the settled records.
func (p *partition) Close(context.Context) error { return nil }

// deliver dispatches a message and waits until it is settled. It returns the stages in which the message waits for its
// retry, and reports false if the partition was given up first: then its next owner gets the message again.
func (p *partition) deliver(d *delivery) (next []string, acked bool) {
	retries := &p.sub.b.retries
	watched := retries.begin(d.origin)
	defer func() { next = retries.end(d.origin, watched) }()
	d.answer = make(chan driver.Answer, 1)
	if p.ctx.Err() != nil || !p.hand(d) {
		return nil, false
	}
	select {
	case answer := <-d.answer:
		return nil, answer == driver.Ack
	case <-p.ended:
	}
	select {
	case answer := <-d.answer:
		return nil, answer == driver.Ack
	default:
		return nil, false
	}
}

// stage is the name of a waiting record's stage, the same for all copies of one retry.
func (d *delivery) stage() string {
	if stage, ok := find(d.record.Headers, envelope.KeyStage); ok {
		return stage
	}
	return d.origin.Position // of a foreign record
}

// sleep waits and reports true, or reports false as soon as ctx ends.
func sleep(ctx context.Context, d time.Duration) bool { return wait.For(ctx, d) == nil }

// retries records the retries of messages in flight, which an ack does not show: a subscription that keeps the order of
// a key must know whether a message waits for one. The zero value is ready to use. It is safe for concurrent use.
type retries struct {
	mu  sync.Mutex
	now map[deliveryKey]*[]string // the stages in which a message waits for its retry
}

// deliveryKey identifies a message in flight by its consumer and the position it keeps over all retries.
type deliveryKey struct{ topic, group, position string }

func deliveryKeyOf(o *envelope.Origin) deliveryKey {
	return deliveryKey{o.Topic, o.Consumer, o.Position}
}

// begin starts watching a message. end must follow.
func (r *retries) begin(o *envelope.Origin) *[]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now == nil {
		r.now = map[deliveryKey]*[]string{}
	}
	stages := new([]string)
	r.now[deliveryKeyOf(o)] = stages
	return stages
}

// end returns the stages of the message.
func (r *retries) end(o *envelope.Origin, stages *[]string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.now[deliveryKeyOf(o)] == stages {
		delete(r.now, deliveryKeyOf(o))
	}
	return *stages
}

// note records a stored publication.
func (r *retries) note(o *driver.Outgoing) {
	if o.To.Kind != driver.ToConsumer {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	stages := r.now[deliveryKey{o.To.Topic, o.To.Consumer, o.Origin.Position}]
	if stage := o.Metadata()[envelope.KeyStage]; stages != nil && !slices.Contains(*stages, stage) {
		*stages = append(*stages, stage)
	}
}
