package kafka

import (
	"errors"
	"log/slog"
	"time"

	"github.com/IBM/sarama"

	"github.com/redrive-go/redrive/envelope"
)

// pump reads one partition of a retry topic. Its records wait for the same time, so the first is the first to be due:
// the pump holds the head and does not read on until then. A long wait costs neither requests nor memory.
type pump struct {
	p     *partition
	topic string
	wait  time.Duration
	now   func() time.Time // what the clock of the broker shows that stamps the topic

	account *tracker // nil before the group's position is known
	from    int64    // next offset to read
	fetched time.Time
}

func (q *pump) run() {
	sub := q.p.sub
	for pause := minPause; q.p.ctx.Err() == nil; pause = min(2*pause, maxPause) {
		err := q.read()
		if q.p.ctx.Err() != nil {
			return
		}
		level := slog.LevelDebug // a topic that has just been made needs a moment
		if pause >= time.Second {
			level = slog.LevelWarn
		}
		sub.log.Log(q.p.ctx, level, "a retry topic cannot be read; trying again", "retry_topic", q.topic, "partition", q.p.id, "err", err)
		if !sleep(q.p.ctx, pause) {
			return
		}
	}
}

// read takes records until the partition is given up or the topic fails.
func (q *pump) read() error {
	p := q.p
	if q.account == nil {
		positions, err := committed(p.ctx, p.sub.b.own, p.sub.cfg.Group, []string{q.topic}, p.id)
		if err != nil {
			return err
		}
		q.from = positions[q.topic].offset
		q.account = p.track(q.topic, positions[q.topic])
	}
	if err := p.sub.has(q.topic, p.id); errors.Is(err, errNoPartition) {
		<-p.ctx.Done() // the topic has fewer partitions than its source, and may not get more: retries use those there are
		return nil
	} else if err != nil {
		return err
	}
	f := fetcher{client: p.sub.reader, clocks: &p.sub.b.clocks, topic: q.topic, partition: p.id}
	for sleep(p.ctx, fetchPause-time.Since(q.fetched)) {
		q.fetched = time.Now()
		records, next, end, err := f.fetch(q.from)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			q.from = next // nothing there that is a record
		} else if !q.take(records) {
			return nil
		}
		if q.from >= end && !p.sub.bells.wait(p.ctx, place{q.topic, p.id}, q.from) {
			return nil
		}
		if next < end {
			q.fetched = time.Time{} // the answer was full
		}
	}
	return nil
}

// fetchPause lets records come together under load, where each would ring the bell. Nothing is late by more than this.
const fetchPause = 50 * time.Millisecond

// keepFor bounds how long what was read behind a record is kept while that record waits. Longer waits keep one record
// in memory, and read the others again.
const keepFor = time.Second

// take brings records to their next places, all of them or those in front of a long wait. It reports false when the
// partition is being given up.
func (q *pump) take(records []*sarama.ConsumerMessage) bool {
	for _, r := range records {
		mark, ok := q.account.add(q.p.ctx, r.Offset)
		if !ok {
			return false
		}
		q.from = r.Offset + 1
		if q.account.known(r.Offset) {
			q.account.settle(mark)
			continue
		}
		long := q.wait > keepFor && q.waitsFor(r) > keepFor
		if long {
			records = nil //nolint:ineffassign,wastedassign // lets go of them
		}
		if !q.pass(&delivery{record: r, waiting: true, tracker: q.account, mark: mark}) {
			return false
		}
		if long {
			return true
		}
	}
	return true
}

// waitsFor is about how long a record has to wait yet.
func (q *pump) waitsFor(r *sarama.ConsumerMessage) time.Duration {
	due, _ := q.due(r)
	return min(q.wait, due.Sub(q.now()))
}

// pass brings a record to its next place. It reports false when the partition is being given up.
func (q *pump) pass(d *delivery) bool {
	sub := q.p.sub
	if control, ok := find(d.record.Headers, headerControl); ok {
		return q.obey(control, d)
	}
	if whose, ok := find(d.record.Headers, envelope.KeyConsumer); ok && whose != sub.cfg.Group {
		d.settle() // naming schemes may let groups share a retry topic; each takes only its own
		return true
	}
	d.origin = readOrigin(d.record, sub.topic, sub.cfg.Group, true)
	due, delay := q.due(d.record)
	rest, ok := q.hold(d.record, due)
	switch {
	case !ok:
		return false
	case rest > 0:
		return q.hop(d, due, rest, delay)
	default:
		return q.p.lanes.take(q.p.ctx, d)
	}
}

// obey does what a control record says.
func (q *pump) obey(control string, d *delivery) bool {
	switch {
	case control == controlTiers:
		q.p.sub.lookForTiers()
	case control == controlRelease && q.p.order != nil && d.record.Key != nil:
		d.release = true
		return q.p.lanes.take(q.p.ctx, d) // in its turn among the deliveries of the key
	}
	d.settle()
	return true
}

// due returns when the broker's clock will show that the message's delay is over.
func (q *pump) due(r *sarama.ConsumerMessage) (due time.Time, delay time.Duration) {
	if ms, ok := number(r.Headers, headerWait); ok {
		delay = time.Duration(min(ms, envelope.MaxDelay.Milliseconds())) * time.Millisecond
	}
	// A stamp may be older than the moment it stands for by what was cut off.
	due = r.Timestamp.Add(delay + time.Millisecond)
	if ms, ok := number(r.Headers, envelope.KeyNotBefore); ok {
		latest := r.Timestamp.Add(envelope.MaxDelay)
		if due = time.UnixMilli(ms); due.After(latest) {
			due = latest
		}
	}
	return due, delay
}

// hold waits until the record is due, or has waited for as long as this topic lets records wait. It returns what is
// left of the wait then.
func (q *pump) hold(r *sarama.ConsumerMessage, due time.Time) (rest time.Duration, ok bool) {
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

// hop moves a record to the topic of its next wait. The next ones do not wait for the answer.
func (q *pump) hop(d *delivery, due time.Time, rest, delay time.Duration) bool {
	sub := q.p.sub
	q.p.pumps.Go(func() {
		for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
			err := sub.b.hop(q.p.ctx, d, due, rest, delay)
			if err == nil {
				d.settle()
				return
			}
			if q.p.ctx.Err() != nil {
				return
			}
			sub.log.Warn("a waiting message cannot be moved on; trying again", "retry_topic", q.topic, "err", err)
			if !sleep(q.p.ctx, pause) {
				return
			}
		}
	})
	return true
}
