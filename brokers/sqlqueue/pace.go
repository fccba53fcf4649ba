package sqlqueue

import "time"

// lookAhead is how much work, in time, a subscription leases beyond what its handlers are doing: enough to hide the
// round trip of a claim, but so little that a slow handler withholds no message from an idle worker.
const lookAhead = 50 * time.Millisecond

// pace measures the speed of handlers. The zero value is ready for use.
type pace struct {
	handled int64
	at      time.Time
	ahead   int
}

// update returns how many messages the handlers finish within lookAhead, based on their progress since the last call.
func (p *pace) update(handled int64, now time.Time) int {
	elapsed := now.Sub(p.at)
	switch {
	case p.at.IsZero():
	case elapsed < time.Millisecond: // too short to measure
		return p.ahead
	default:
		p.ahead = int(float64(handled-p.handled) / elapsed.Seconds() * lookAhead.Seconds())
	}
	p.handled, p.at = handled, now
	return p.ahead
}

// lowWater remembers how far into a queue's index the claims have advanced, as long as they are full.
//
// A claimed or deleted row stays in the index until no snapshot can see it. One forgotten transaction, anywhere in the
// database, keeps all of them, and each claim would read through this growing heap again. The mark lets it start after
// them. Rows can appear before the mark (a transaction that commits late, a returned lease), so occasionally a claim
// reads from the start, for a bounded share of the time.
type lowWater struct {
	mark     int64 // microseconds since 1970, by the database's clock
	whole    time.Time
	interval time.Duration
}

const (
	lowWaterOverlap  = 100 * time.Millisecond
	lowWaterInterval = 100 * time.Millisecond
)

// from returns where the next claim should start reading.
func (l *lowWater) from(now time.Time) int64 {
	if l.mark > 0 && now.Sub(l.whole) < l.interval {
		return l.mark
	}
	l.mark = 0
	return 0
}

// update records a claim. One that was not full has seen the end of the due rows: the next starts over.
func (l *lowWater) update(list []claimed, full bool, began, ended time.Time) {
	if !full {
		l.mark = 0
		return
	}
	if l.mark == 0 {
		l.whole = ended
		l.interval = max(lowWaterInterval, 10*ended.Sub(began))
	}
	first, last := list[0].dueAt, list[0].at
	for _, c := range list {
		first, last = min(first, c.dueAt), max(last, c.at)
	}
	if last == 0 {
		last = first - lowWaterOverlap.Microseconds()
	}
	l.mark = max(last, 1)
}
