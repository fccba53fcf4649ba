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
	if p.at.IsZero() || elapsed < time.Millisecond {
		if p.at.IsZero() {
			p.handled, p.at = handled, now
		}
		return p.ahead
	}
	p.ahead = int(float64(handled-p.handled) / elapsed.Seconds() * lookAhead.Seconds())
	p.handled, p.at = handled, now
	return p.ahead
}

// Bounds of the pause between two polls of an idle queue.
const (
	shortestPause = 2 * time.Millisecond
	listenedPause = time.Second // with notifications, polling only finds missed ones
)

// idleness returns the pauses between polls: short ones after a message, growing to longest. It costs an idle queue few
// statements and a busy one little latency.
type idleness struct {
	longest time.Duration
	pause   time.Duration
}

func (i *idleness) reset() { i.pause = 0 }

// fresh reports whether no pause was made since the last message.
func (i *idleness) fresh() bool { return i.pause == 0 }

func (i *idleness) next(listening bool) time.Duration {
	longest := i.longest
	if listening {
		longest = max(longest, listenedPause)
	}
	i.pause = min(max(shortestPause, 2*i.pause), longest)
	return i.pause
}
