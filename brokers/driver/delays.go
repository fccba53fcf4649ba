package driver

import (
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Steps is the sorted set of durations that a broker can wait for, of those that cannot wait for any. A longer or an
// odd delay is waited out in several of them. The zero value has none.
type Steps []time.Duration

// NewSteps returns the steps for durations, in whole milliseconds, without those that are not positive.
func NewSteps(durations ...time.Duration) Steps {
	var steps Steps
	for _, d := range durations {
		if d > 0 {
			steps = append(steps, CeilMillis(d))
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// Pick chooses the step in which a message waits next that is due in rest, and returns how much is left to wait behind
// it. late is by how much it may come late: a step that is longer by no more than this ends the wait. Without such a
// step the longest that is shorter is chosen, or the shortest if none is shorter. It returns 0 and rest when there are
// no steps.
func (s Steps) Pick(rest, late time.Duration) (step, left time.Duration) {
	if len(s) == 0 {
		return 0, rest
	}
	rest = CeilMillis(rest)
	i, exact := slices.BinarySearch(s, rest)
	switch {
	case exact, i == 0, i < len(s) && s[i]-rest <= late:
		return s[i], 0
	}
	return s[i-1], rest - s[i-1]
}

// CeilMillis rounds d up to whole milliseconds, so that nothing that is counted in them is early.
func CeilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Rest is how long m must still wait at now, by the time that the engine has written for a transport with
// [Traits.Early]. Call it only for a message that comes from a place where messages wait: anybody can write the header.
func Rest(m *message.Message, now time.Time) time.Duration {
	ms, err := strconv.ParseInt(m.Metadata[envelope.KeyNotBefore], 10, 64)
	if err != nil {
		return 0
	}
	return min(max(time.UnixMilli(ms).Sub(now), 0), envelope.MaxDelay)
}
