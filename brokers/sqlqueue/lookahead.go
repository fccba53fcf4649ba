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
