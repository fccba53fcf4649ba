package kafka

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
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

// tracker knows which records of one partition are not settled, and therefore from which offset a successor has to
// read. Records are settled in any order; those settled after the first unsettled one are recorded in the position's
// note, so that the successor skips them. It is safe for concurrent use.
type tracker struct {
	window int

	mu        sync.Mutex
	unsettled []inFlight    // in order of offset
	added     int           // records so far
	seen      int64         // offset after the last record; the group's position before the first
	epoch     int32         // of the leader that stored the last record; negative if unknown
	done      int64         // offset after the last settled record
	changed   bool          // since the last commit
	room      chan struct{} // a token when the window may have room again

	before      map[int64]struct{} // records that the predecessor had not settled, below beforeEnd
	beforeEnd   int64
	beforeEpoch int32 // after an unclean election, records of a later one have the offsets of those that are lost
}

type inFlight struct {
	offset int64
	number int // counts the partition's records
}

// newTracker starts at the group's position. window is how many records there may be from the first unsettled one on.
func newTracker(at position, window int) *tracker {
	t := &tracker{window: window, seen: at.offset, epoch: -1, room: make(chan struct{}, 1), changed: at.fresh}
	if at.offset >= 0 && !at.fresh {
		t.epoch = at.epoch
	}
	t.before, t.beforeEnd = unpackNote(at)
	t.beforeEpoch = t.epoch
	return t
}

// known reports whether the predecessor has already settled a record.
func (t *tracker) known(r *kgo.Record) bool {
	if t.before == nil || r.Offset >= t.beforeEnd || t.beforeEpoch >= 0 && r.LeaderEpoch > t.beforeEpoch {
		return false
	}
	_, waiting := t.before[r.Offset]
	return !waiting
}

// add records that a record is in flight. It blocks while the window is full, and reports false if ctx ended first.
func (t *tracker) add(ctx context.Context, r *kgo.Record) bool {
	for {
		t.mu.Lock()
		if len(t.unsettled) == 0 || t.added-t.unsettled[0].number < t.window {
			t.unsettled = append(t.unsettled, inFlight{r.Offset, t.added})
			t.added++
			t.seen, t.epoch = r.Offset+1, r.LeaderEpoch
			t.mu.Unlock()
			return true
		}
		t.mu.Unlock()
		select {
		case <-t.room:
		case <-ctx.Done():
			return false
		}
	}
}

// expects returns the next offset, or a negative one if the first record is not known.
func (t *tracker) expects() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// settle marks a record as done.
func (t *tracker) settle(offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, found := slices.BinarySearchFunc(t.unsettled, offset, func(r inFlight, offset int64) int {
		return cmp.Compare(r.offset, offset)
	})
	if !found {
		return
	}
	t.unsettled = slices.Delete(t.unsettled, i, i+1)
	t.done = max(t.done, offset+1)
	t.changed = true
	if i == 0 {
		wait.Signal(t.room)
	}
}

// position returns the position to commit, and whether it has moved since the last commit.
func (t *tracker) position() (at position, moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now(), t.changed
}

// now is position for callers that hold mu.
func (t *tracker) now() position {
	if len(t.unsettled) == 0 {
		return position{offset: t.seen, epoch: t.epoch}
	}
	at := position{offset: t.unsettled[0].offset, epoch: t.epoch}
	var waiting []int64
	for _, r := range t.unsettled {
		if r.offset < t.done {
			waiting = append(waiting, r.offset)
		}
	}
	if len(waiting) > 0 {
		at.note = packNote(waiting, t.done)
	}
	return at
}

// committedAt forgets the change, unless there has been another one since.
func (t *tracker) committedAt(at position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = t.now() != at
}

// maxNote is the largest note of a position: Kafka's default for offset.metadata.max.bytes is 4096.
const maxNote = 4000

// packNote encodes which offsets after the first are not settled, up to an end: the distances between them, and then
// the distance to the end. Offsets for which there is no room count as not settled.
func packNote(offsets []int64, end int64) string {
	var (
		packed []byte
		room   = base64.RawStdEncoding.DecodedLen(maxNote) - 2*binary.MaxVarintLen64
		last   = offsets[0]
	)
	for _, offset := range offsets[1:] {
		if len(packed) >= room {
			end = offset
			break
		}
		packed = binary.AppendUvarint(packed, uint64(offset-last)) //nolint:gosec // G115: offsets ascend
		last = offset
	}
	packed = binary.AppendUvarint(packed, 0)
	packed = binary.AppendUvarint(packed, uint64(end-last)) //nolint:gosec // G115: the end is behind all offsets
	return base64.RawStdEncoding.EncodeToString(packed)
}

// unpackNote returns the offsets from at on that are not settled, and the end, from which on none is settled. A foreign
// note means that everything has to be done again.
func unpackNote(at position) (waiting map[int64]struct{}, end int64) {
	packed, err := base64.RawStdEncoding.DecodeString(at.note)
	if err != nil {
		return nil, at.offset
	}
	waiting = map[int64]struct{}{at.offset: {}}
	last := at.offset
	for len(packed) > 0 {
		distance, n := binary.Uvarint(packed)
		if n <= 0 {
			break
		}
		packed = packed[n:]
		if distance == 0 {
			if distance, n = binary.Uvarint(packed); n > 0 {
				return waiting, last + int64(distance) //nolint:gosec // G115: written by packNote
			}
			break
		}
		last += int64(distance) //nolint:gosec // G115: written by packNote
		waiting[last] = struct{}{}
	}
	return nil, at.offset
}
