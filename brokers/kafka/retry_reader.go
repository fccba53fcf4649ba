package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// retryReader reads one partition of a retry topic. Its records wait for the same time, so the first is the first to be
// due: the reader holds it and does not read on until then. A long wait costs neither requests nor memory.
type retryReader struct {
	p     *partition
	topic string
	wait  time.Duration
	now   func() time.Time // what the clock of the broker shows that stamps the topic

	id        topicID // of the topic that is read; the partition's mu guards it
	lookAgain atomic.Bool

	incarnation string
	account     *tracker // nil before the group's position is known
	from        int64    // next offset to read
	fetched     time.Time
	ahead       int // how often in a row the partition ended in front of from
}

func newRetryReader(p *partition, topic string, wait time.Duration) *retryReader {
	return &retryReader{p: p, topic: topic, wait: wait, now: func() time.Time {
		return p.sub.brokerTime(p.ctx, place{topic, p.id})
	}}
}

func (q *retryReader) run() {
	sub := q.p.sub
	for failures := 1; q.p.ctx.Err() == nil; failures++ {
		began := time.Now()
		err := q.read()
		if q.p.ctx.Err() != nil {
			return
		}
		if time.Since(began) > healthy {
			failures = 1
		}
		level := slog.LevelDebug // a topic that has just been made needs a moment
		if failures > 4 {
			level = slog.LevelWarn
		}
		sub.log.Log(q.p.ctx, level, "a retry topic cannot be read; trying again", "retry_topic", q.topic, "partition", q.p.id,
			"err", err)
		if isGone(err) {
			sub.b.topics.forget(q.topic) // it is made again, if auto-create allows
		}
		if !sleep(q.p.ctx, retrying.After(failures)) {
			return
		}
	}
}

// read takes records until the partition is given up or the topic fails.
func (q *retryReader) read() error {
	p := q.p
	at := place{q.topic, p.id}
	if err := p.sub.has(at); errors.Is(err, errNoPartition) {
		<-p.ctx.Done() // the topic has fewer partitions than its source, and may not get more: retries use those there are
		return nil
	} else if err != nil {
		return err
	}
	f := p.sub.b.fetcher(at)
	f.moved = true
	if _, err := f.leader(p.ctx); err != nil {
		return err
	}
	switch {
	case q.account == nil:
		positions, err := committed(p.ctx, p.sub.b.own, p.sub.q.Group, []place{at})
		if err != nil {
			return err
		}
		q.begin(positions[at].in(f.id), f.id)
	case f.id.another(q.id):
		q.beginAnew(f.id)
	}
	for sleep(p.ctx, fetchPause-time.Since(q.fetched)) {
		q.fetched = time.Now()
		f.moved = f.moved || q.lookAgain.Swap(false)
		got, err := f.fetch(p.ctx, q.from)
		switch {
		case errors.Is(err, errMadeAgain):
			q.beginAnew(f.id)
			continue
		case errors.Is(err, kerr.OffsetOutOfRange):
			q.outOfRange()
		}
		if err != nil {
			return err
		}
		q.ahead = 0
		records := got.records
		got.records = nil
		if len(records) == 0 {
			q.from = got.next // nothing there that is a record
		} else if !q.take(records) {
			return nil
		}
		if q.from >= got.end && !p.sub.b.news.wait(p.ctx, at, q.from) {
			return nil
		}
		if got.next < got.end {
			q.fetched = time.Time{} // the answer was full
		}
	}
	return nil
}

// begin continues at a position of a topic.
func (q *retryReader) begin(at position, of topicID) {
	q.from = at.offset
	q.incarnation = of.incarnation(q.p.sub.b.topics.cluster())
	q.account = newTracker(at, q.p.sub.window)
	q.p.account(q.topic, of, q.account)
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.id = of
}

// beginAnew continues at the oldest record.
func (q *retryReader) beginAnew(of topicID) {
	q.p.sub.log.Warn("a retry topic begins anew: what it holds is read from its oldest record on",
		"retry_topic", q.topic, "partition", q.p.id, "offset", q.from)
	q.ahead = 0
	q.begin(position{offset: -1}, of)
}

// outOfRange counts answers that the partition ends in front of what was read: a leader that has just been elected may
// not know better. After a few, the partition has lost its end, and is read from its beginning.
func (q *retryReader) outOfRange() {
	const tolerated = 5
	if q.ahead++; q.ahead >= tolerated {
		q.beginAnew(q.id)
	}
}

// fetchPause lets records come together under load, where each would be news. Nothing is late by more than this.
const fetchPause = 50 * time.Millisecond

// keepFor bounds how long what was read behind a record is kept while that record waits. Longer waits keep one record
// in memory, and read the others again.
const keepFor = time.Second

// take brings records to their next places, all of them or those in front of a long wait. It reports false when the
// partition is being given up.
func (q *retryReader) take(records []*kgo.Record) bool {
	for len(records) > 0 {
		r := records[0]
		records = records[1:]
		mark, ok := q.account.add(q.p.ctx, r.Offset)
		if !ok {
			return false
		}
		q.from = r.Offset + 1
		if q.account.known(r.Offset) {
			q.account.settle(mark)
			continue
		}
		if q.wait > keepFor && q.waitsFor(r) > keepFor {
			records, r = nil, cloneRecord(r) // lets go of the others
		}
		if !q.pass(&delivery{record: r, waiting: true, tracker: q.account, mark: mark}) {
			return false
		}
	}
	return true
}

// waitsFor is about how long a record has to wait yet.
func (q *retryReader) waitsFor(r *kgo.Record) time.Duration {
	due, _ := q.due(r)
	return min(q.wait, due.Sub(q.now()))
}

// pass brings a record to its next place. It reports false when the partition is being given up.
func (q *retryReader) pass(d *delivery) bool {
	sub := q.p.sub
	if control, ok := find(d.record.Headers, headerControl); ok {
		return q.control(control, d)
	}
	if whose, ok := find(d.record.Headers, envelope.KeyConsumer); ok && whose != sub.q.Group {
		d.settle() // naming schemes may let groups share a retry topic; each takes only its own
		return true
	}
	d.origin = sub.origin(d.record, q.incarnation, true)
	due, delay := q.due(d.record)
	rest, ok := q.hold(d.record, due)
	switch {
	case !ok:
		return false
	case rest > 0:
		return q.moveOn(d, due, rest, delay)
	default:
		return q.p.take(d)
	}
}

// control does what a control record says.
func (q *retryReader) control(control string, d *delivery) bool {
	switch {
	case control == controlTiers:
		q.p.sub.lookForTiers()
	case control == controlRelease && q.p.order != nil && d.record.Key != nil:
		d.release = true
		return q.p.take(d) // in its turn among the deliveries of the key
	}
	d.settle()
	return true
}

// due returns when the broker's clock will show that the message's delay is over. A time that a record names itself is
// bounded by the delay that was asked for, which the record has too: anybody may write such a record.
func (q *retryReader) due(r *kgo.Record) (due time.Time, delay time.Duration) {
	if ms, ok := number(r.Headers, headerWait); ok {
		delay = time.Duration(min(ms, envelope.MaxDelay.Milliseconds())) * time.Millisecond
	}
	// A stamp may be older than the moment it stands for by what was cut off.
	due = r.Timestamp.Add(delay + time.Millisecond)
	if ms, ok := number(r.Headers, envelope.KeyNotBefore); ok {
		if named := time.UnixMilli(ms); named.Before(due) {
			due = named
		}
	}
	return due, delay
}

// hold waits until the record is due, or has waited for as long as this topic lets records wait. It returns what is
// left of the wait then.
func (q *retryReader) hold(r *kgo.Record, due time.Time) (rest time.Duration, ok bool) {
	until := r.Timestamp.Add(q.wait + time.Millisecond)
	if due.Before(until) {
		until = due
	}
	for {
		now := q.now()
		if left := until.Sub(now); left > 0 {
			if left > staleAfter/2 {
				left -= staleAfter / 4 // and then the clock is asked again, once in a long wait
			}
			if !sleep(q.p.ctx, left) {
				return 0, false
			}
			continue
		}
		return due.Sub(now), true
	}
}

// moveOn moves a record to the topic of its next wait. Those behind it do not wait for the answer.
func (q *retryReader) moveOn(d *delivery, due time.Time, rest, delay time.Duration) bool {
	sub := q.p.sub
	q.p.readers.Go(func() {
		for n := 1; ; n++ {
			err := sub.b.moveOn(q.p.ctx, d, due, rest, delay)
			if err == nil {
				d.settle()
				return
			}
			if q.p.ctx.Err() != nil {
				return
			}
			sub.log.Warn("a waiting message cannot be moved on; trying again", "retry_topic", q.topic, "err", err)
			if errors.Is(err, brokers.ErrTooLarge) {
				q.waitHere(d, due)
				return
			}
			if !sleep(q.p.ctx, retrying.After(n)) {
				return
			}
		}
	})
	return true
}

// waitHere waits for the rest of a wait in memory, of a message that no topic of ours has room for.
func (q *retryReader) waitHere(d *delivery, due time.Time) {
	if sleep(q.p.ctx, due.Sub(q.now())) {
		q.p.take(d)
	}
}

// moveOn sends a waiting record to the retry topic of its group for the rest of its wait.
func (b *transport) moveOn(ctx context.Context, d *delivery, due time.Time, rest, delay time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	wait := b.tiers.pick(rest, delay)
	name := b.retryName(d.origin.Topic, d.origin.Consumer, wait)
	r := nextWait(d.record, d.origin, name, due)
	if err := errors.Join(b.park(ctx, d.origin.Topic, waitingRecord{Record: r, wait: wait})...); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	return nil
}
