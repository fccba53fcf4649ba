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

	resume  bool // not a message: its key may have parked messages to resume
	release bool // not a message: its key may continue after a dead letter

	answer chan driver.Settlement // with order=key: capacity 1
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

// submit passes a delivery to the handlers, in its turn. It reports false if the partition has to be given up.
func (p *partition) submit(d *delivery) bool {
	if p.order != nil {
		return p.keyed.submit(p.ctx, d)
	}
	return p.offer(d)
}

// offer passes a delivery to the engine.
func (p *partition) offer(d *delivery) bool {
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
		given := driver.Delivery{Message: d.message(), Origin: *d.origin, FromTopic: !d.waiting, Token: d}
		if p.order == nil && p.sub.q.Concurrency > 1 && d.record.Key != nil { // with order, it has waited for its turn
			given.Order = "k" + string(d.record.Key)
		}
		return given, nil
	case <-ctx.Done():
		return driver.Delivery{}, ctx.Err()
	}
}

// Renew implements driver.Renewer.
func (p *partition) Renew(given *driver.Delivery) *message.Message {
	return given.Token.(*delivery).message()
}

// Settle implements driver.Stream.
func (p *partition) Settle(_ context.Context, settled []driver.Settlement) []error {
	for _, s := range settled {
		switch d := s.Delivery.Token.(*delivery); {
		case d.answer != nil:
			d.answer <- s
		case s.Answer == driver.Ack:
			d.settle()
		}
	}
	return nil
}

// Close implements driver.Stream: giveUp commits the settled records.
func (p *partition) Close(context.Context) error { return nil }

// deliver dispatches a message and waits until it is settled. It reports false if the partition was given up first:
// then its next owner gets the message again.
func (p *partition) deliver(d *delivery) (ended outcome, acked bool) {
	outcomes := &p.sub.b.outcomes
	watched := outcomes.begin(d.origin)
	defer func() { ended = outcomes.end(d.origin, watched) }()
	d.answer = make(chan driver.Settlement, 1)
	if p.ctx.Err() != nil || !p.offer(d) {
		return ended, false
	}
	var answer driver.Settlement
	select {
	case answer = <-d.answer:
	case <-p.ended:
		select {
		case answer = <-d.answer:
		default:
			return ended, false
		}
	}
	watched.skipped = answer.Skipped
	return ended, answer.Answer == driver.Ack
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

// outcomes records how messages in flight end, which an ack does not show: a subscription that keeps the order of a key
// must know whether a message waits for a retry or is dead. The zero value is ready to use. It is safe for concurrent
// use.
type outcomes struct {
	mu  sync.Mutex
	now map[deliveryKey]*outcome
}

// deliveryKey identifies a message in flight by its consumer and the place it keeps over all retries.
type deliveryKey struct {
	topic, group string
	place
}

type outcome struct {
	retries []string // the stages in which the message waits for its retry
	dead    bool
	skipped bool // another copy of it has been settled
}

func deliveryKeyOf(o *envelope.Origin) deliveryKey {
	return deliveryKey{o.Topic, o.Consumer, placeOf(o)}
}

// begin starts watching a message. end must follow.
func (o *outcomes) begin(origin *envelope.Origin) *outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.now == nil {
		o.now = map[deliveryKey]*outcome{}
	}
	watched := &outcome{}
	o.now[deliveryKeyOf(origin)] = watched
	return watched
}

// end returns the outcome of the message.
func (o *outcomes) end(origin *envelope.Origin, watched *outcome) outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if key := deliveryKeyOf(origin); o.now[key] == watched {
		delete(o.now, key)
	}
	return *watched
}

// note records a stored publication.
func (o *outcomes) note(out *driver.Outgoing) {
	if out.To.Kind == driver.ToTopic {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	watched := o.now[deliveryKey{out.To.Topic, out.To.Consumer, placeOf(out.Origin)}]
	switch {
	case watched == nil:
	case out.To.Kind == driver.ToDeadLetters:
		watched.dead = true
	default:
		if stage := out.Metadata()[envelope.KeyStage]; !slices.Contains(watched.retries, stage) {
			watched.retries = append(watched.retries, stage)
		}
	}
}
