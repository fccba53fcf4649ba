package sqlqueue

import "time"

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
