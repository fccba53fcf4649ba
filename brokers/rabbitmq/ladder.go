package rabbitmq

import (
	"slices"
	"time"
)

// ladder is the sorted list of delays for which a queue stands ready. RabbitMQ can only expire the message at the head
// of a queue, so that each delay needs its own; a short one behind a long one would wait for it.
type ladder struct {
	steps   []time.Duration
	percent int // by how much a delay may be rounded up
}

// The grid serves the delays that nobody named beforehand: powers of two from 50 ms to 14.5 h, 21 queues.
const (
	gridFirst = 50 * time.Millisecond
	gridLast  = 24 * time.Hour
)

func newLadder(named []time.Duration, grid bool, percent int) ladder {
	steps := compactDelays(named)
	if grid {
		for d := gridFirst; d <= gridLast; d *= 2 {
			steps = append(steps, d)
		}
	}
	slices.Sort(steps)
	return ladder{steps: slices.Compact(steps), percent: percent}
}

// compactDelays sorts delays, in whole milliseconds, and drops zeros and doubles.
func compactDelays(delays []time.Duration) []time.Duration {
	var out []time.Duration
	for _, d := range delays {
		if d > 0 {
			out = append(out, time.Duration(roundUp(d))*time.Millisecond)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// slack is how much later than due a message may come because its delay was rounded up: half of what is promised (1 %,
// or 100 ms), the other half being for the way.
func (l ladder) slack(delay time.Duration) time.Duration {
	return max(delay*time.Duration(l.percent)/200, 50*time.Millisecond)
}

// step chooses the queue for a delay and says how much is left to wait behind it: nothing where a step fits, else the
// message takes the largest step that is shorter, comes back early, and is sent on for the rest. It reports false when
// there are no steps.
func (l ladder) step(delay time.Duration) (step, rest time.Duration, ok bool) {
	if len(l.steps) == 0 {
		return 0, 0, false
	}
	delay = time.Duration(roundUp(delay)) * time.Millisecond
	above, exact := slices.BinarySearch(l.steps, delay)
	switch {
	case exact:
		return delay, 0, true
	case above < len(l.steps) && (above == 0 || l.steps[above]-delay <= l.slack(delay)):
		return l.steps[above], 0, true
	}
	step = l.steps[above-1]
	return step, delay - step, true
}
