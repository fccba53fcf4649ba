package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// retryReader reads one partition of a retry topic. Its records all wait for the same time, so the first is due first:
// the reader holds it and stops reading until then. A long wait costs neither requests nor memory.
type retryReader struct {
	p    *partition
	f    *fetcher
	wait time.Duration
	now  func() time.Time // clock of the broker that timestamps the topic

	id        topicID // of the topic that is read; guarded by the partition's mu
	lookAgain atomic.Bool
	grown     chan struct{} // a token if the topic has the partition, as far as the last look knows

	incarnation string
	account     *tracker // nil until the group's position is known
	fetchedOnce bool     // since then
	from        int64    // next offset to read
	newest      int64    // first deliveries before it are from before the group
	fetched     time.Time
}

func newRetryReader(p *partition, topic string, wait time.Duration) *retryReader {
	at := topicPartition{topic, p.id}
	now := func() time.Time { return p.sub.brokerTime(p.ctx, at) }
	return &retryReader{p: p, f: p.sub.b.fetcher(at), wait: wait, now: now, grown: make(chan struct{}, 1)}
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
		if failures >= failuresLogged {
			sub.log.Warn("a retry topic cannot be read; trying again", "retry_topic", q.f.topic, "partition", q.p.id, "err", err)
		}
		if isGone(err) {
			sub.b.topics.forget(q.f.topic) // it is recreated, if auto-create allows
		}
		if !sleep(q.p.ctx, retrying.After(failures)) {
			return
		}
	}
}

// failuresLogged is how many failures in a row cause a warning: a topic that was just created needs a moment.
const failuresLogged = 5

// read processes records until the partition is given up or the topic fails.
func (q *retryReader) read() error {
	p := q.p
	f, at := q.f, q.f.topicPartition
	if err := q.waitForPartition(at); err != nil {
		return err
	}
	f.moved = true
	if _, err := f.leader(p.ctx); err != nil && !errors.Is(err, errMadeAgain) {
		return err
	}
	switch {
	case q.account == nil:
		positions, err := p.sub.b.topics.committed(p.ctx, p.sub.q.Group, []topicPartition{at})
		if err != nil {
			return err
		}
		stored := positions[at].in(f.id)
		if stored.offset < 0 {
			q.newest = p.ends[at]
		}
		q.begin(stored, f.id)
	case f.id.differs(q.id):
		q.startOver(f.id)
	}
	for sleep(p.ctx, fetchPause-time.Since(q.fetched)) {
		q.fetched = time.Now()
		f.moved = f.moved || q.lookAgain.Swap(false)
		got, err := f.fetch(p.ctx, q.from)
		switch {
		case errors.Is(err, errMadeAgain), errors.Is(err, errLostEnd):
			q.startOver(f.id)
			continue
		case err != nil:
			return err
		}
		q.skipRemoved(got.start)
		q.fetchedOnce = true
		records := got.records
		got.records = nil
		if len(records) == 0 {
			q.from = got.next // no records there
		} else if !q.process(records) {
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

// skipRemoved continues at start if the partition begins there, after q.from: what lay between has expired, or was
// deleted. After the first answer the account is left alone: it still holds what the predecessor has settled.
func (q *retryReader) skipRemoved(start int64) {
	if q.from < 0 || q.from >= start {
		return
	}
	q.p.sub.log.Warn("records were removed from a retry topic before they were due", "retry_topic", q.f.topic,
		"partition", q.p.id, "gone", start-q.from)
	if q.fetchedOnce && q.p.order != nil {
		q.p.sub.renewLater(errGone) // the keys of their messages would be held back for good
	}
	if q.fetchedOnce {
		q.begin(position{offset: start, fresh: true}, q.f.id)
	}
}

// waitForPartition returns when the topic has the partition, or fails. If none may be added to the topic, retries share
// the existing ones until an operator adds it.
func (q *retryReader) waitForPartition(at topicPartition) error {
	for {
		if err := q.p.sub.has(q.p.ctx, at); !errors.Is(err, errNoPartition) {
			return err
		}
		select {
		case <-q.grown:
		case <-q.p.ctx.Done():
			return context.Cause(q.p.ctx)
		}
	}
}

// begin continues at a position of a topic.
func (q *retryReader) begin(at position, of topicID) {
	q.from = at.offset
	q.incarnation = of.incarnation(q.p.sub.b.topics.cluster())
	q.account = newTracker(at, q.p.sub.window())
	q.f.epoch = q.account.epoch
	q.p.account(q.f.topic, of, q.account)
	q.p.mu.Lock()
	defer q.p.mu.Unlock()
	q.id = of
}

// startOver starts over at the oldest record.
func (q *retryReader) startOver(of topicID) {
	q.p.sub.log.Warn("a retry topic starts over: its records are read from the oldest on",
		"retry_topic", q.f.topic, "partition", q.p.id, "offset", q.from)
	if q.p.order != nil {
		q.p.sub.renewLater(errMadeAgain) // the keys of its messages would be held back for good
	}
	q.newest = 0
	q.begin(position{offset: 0, fresh: true}, of) // otherwise the next owner would start over too
}

// fetchPause lets records accumulate under load, where each one would cause a fetch. It adds at most this much
// lateness.
const fetchPause = 50 * time.Millisecond

// keepFor bounds how long records read behind a waiting one are kept. Longer waits keep one record in memory, and read
// the others again.
const keepFor = time.Second

// process moves records to their next places, all of them or those before a long wait. It reports false if the
// partition is being given up.
func (q *retryReader) process(records []*kgo.Record) bool {
	for len(records) > 0 {
		d := &delivery{record: records[0], waiting: true, tracker: q.account}
		records = records[1:]
		if !q.account.add(q.p.ctx, d.record) {
			return false
		}
		q.from = d.record.Offset + 1
		_, whose := find(d.record.Headers, envelope.KeyConsumer)
		if q.account.known(d.record) || q.p.sub.isForeign(d.record) || !whose && d.record.Offset < q.newest {
			d.settle()
			continue
		}
		if due, _ := q.due(d.record); q.wait > keepFor && due.Sub(q.now()) > keepFor {
			records, d.record = nil, cloneRecord(d.record) // releases the others
		}
		if !q.pass(d) {
			return false
		}
	}
	return true
}

// pass moves a record to its next place. It reports false if the partition is being given up.
func (q *retryReader) pass(d *delivery) bool {
	sub := q.p.sub
	control, controls := find(d.record.Headers, headerControl)
	if controls {
		return q.control(control, d)
	}
	d.origin = sub.waitingOrigin(d.record, q.incarnation)
	if q.wait == 0 { // parked
		return q.p.submit(d)
	}
	due, delay := q.due(d.record)
	rest, ok := q.hold(d.record, due)
	switch {
	case !ok:
		return false
	case rest > 0:
		return q.moveToNextTier(d, due, rest, delay)
	default:
		return q.p.submit(d)
	}
}

// control executes a control record.
func (q *retryReader) control(control string, d *delivery) bool {
	switch {
	case control == controlTiers:
		q.p.sub.findTiers()
	case control == controlRelease && q.p.order != nil && d.record.Key != nil:
		d.release = true
		return q.p.submit(d) // in its turn among the deliveries of the key
	}
	d.settle()
	return true
}

// due returns when the message's delay is over on the broker's clock. A due time in the record is bounded by the
// requested delay, which the record contains too, because any producer may write such a record.
func (q *retryReader) due(r *kgo.Record) (due time.Time, delay time.Duration) {
	if ms, ok := number(r.Headers, headerWait); ok {
		delay = time.Duration(min(ms, envelope.MaxDelay.Milliseconds())) * time.Millisecond
	}
	// A timestamp may precede the actual time by the truncated fraction.
	due = r.Timestamp.Add(delay + time.Millisecond)
	if ms, ok := number(r.Headers, envelope.KeyNotBefore); ok {
		if named := time.UnixMilli(ms); named.Before(due) {
			due = named
		}
	}
	return due, delay
}

// hold waits until the record is due, or has waited for the time of this topic. It returns what is then left of the
// wait.
func (q *retryReader) hold(r *kgo.Record, due time.Time) (rest time.Duration, ok bool) {
	until := r.Timestamp.Add(q.wait + time.Millisecond)
	if due.Before(until) {
		until = due
	}
	for {
		now := q.now()
		left := until.Sub(now)
		if left <= 0 {
			return due.Sub(now), true
		}
		if left > staleAfter/2 {
			left -= staleAfter / 4 // then probe the clock again, once in a long wait
		}
		if !sleep(q.p.ctx, left) {
			return 0, false
		}
	}
}

// moveToNextTier moves a record to the topic of its next wait. Records behind it do not wait for the answer.
func (q *retryReader) moveToNextTier(d *delivery, due time.Time, rest, delay time.Duration) bool {
	sub := q.p.sub
	q.p.readers.Go(func() {
		for n := 1; ; n++ {
			err := sub.b.moveToNextTier(q.p.ctx, d, due, rest, delay)
			if err == nil {
				d.settle()
				return
			}
			if q.p.ctx.Err() != nil {
				return
			}
			sub.log.Warn("a waiting message cannot be moved on; trying again", "retry_topic", q.f.topic, "err", err)
			if errors.Is(err, brokers.ErrTooLarge) || errors.Is(err, errNoPartition) {
				if sleep(q.p.ctx, due.Sub(q.now())) { // in memory, for the rest of its wait
					q.p.submit(d)
				}
				return
			}
			if !sleep(q.p.ctx, retrying.After(n)) {
				return
			}
		}
	})
	return true
}

// moveToNextTier sends a waiting record to the retry topic of its group for the rest of its wait.
func (b *transport) moveToNextTier(ctx context.Context, d *delivery, due time.Time, rest, delay time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.PublishTimeout, b.overdue)
	defer cancel()
	wait := b.tiers.pick(rest, delay)
	name := b.retryName(d.origin.Topic, d.origin.Consumer, wait)
	r := outgoing{Record: nextWait(d.record, d.origin, name, due), source: d.origin.Topic, wait: wait}
	if err := b.store(ctx, []outgoing{r})[0]; err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	return nil
}
