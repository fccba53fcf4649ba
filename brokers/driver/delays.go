package driver

import (
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Steps is the sorted set of durations that a broker can wait for, on brokers that do not support arbitrary ones. A
// longer or odd delay is split into several of them. The zero value has none.
type Steps []time.Duration

// NewSteps returns the steps for durations, in whole milliseconds, ignoring those that are not positive.
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

// Pick chooses the next step for a message that is due in rest, and returns how much is left to wait after it. late is
// how late the message may be: a step that is longer by no more than this ends the wait. Otherwise the longest shorter
// step is chosen, or the shortest step if none is shorter. It returns 0 and rest if there are no steps.
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

// CeilMillis rounds d up to whole milliseconds, so that nothing measured in them is early.
func CeilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Rest is how long m must still wait at now, according to the time that the engine has written for a transport with
// [Traits.Early]. Call it only for a message from a place where messages wait, because any producer can write the
// header.
func Rest(m *message.Message, now time.Time) time.Duration {
	ms, err := strconv.ParseInt(m.Metadata[envelope.KeyNotBefore], 10, 64)
	if err != nil {
		return 0
	}
	return min(max(time.UnixMilli(ms).Sub(now), 0), envelope.MaxDelay)
}
