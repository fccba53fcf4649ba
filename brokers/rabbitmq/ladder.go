package rabbitmq

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
)

// ladder is the delays for which a queue stands ready. RabbitMQ can only expire the message at the head of a queue, so
// that each delay needs its own; a short one behind a long one would wait for it.
type ladder struct {
	steps   driver.Steps
	percent int // by how much a delay may be rounded up
}

// The grid serves the delays that were not named beforehand: powers of two from 50 ms to 14.5 h, 21 queues.
const (
	gridFirst = 50 * time.Millisecond
	gridLast  = 24 * time.Hour
)

func newLadder(named []time.Duration, grid bool, percent int) ladder {
	steps := slices.Clone(named)
	if grid {
		for d := gridFirst; d <= gridLast; d *= 2 {
			steps = append(steps, d)
		}
	}
	return ladder{steps: driver.NewSteps(steps...), percent: percent}
}

// slack is how much later than due a message may come because its delay was rounded up: half of what is promised (1 %,
// or 100 ms), the other half being for the way.
func (l ladder) slack(delay time.Duration) time.Duration {
	return max(delay*time.Duration(l.percent)/200, 50*time.Millisecond)
}

// step chooses the queue for a delay and returns how much is left to wait behind it, for which the message is sent on.
func (l ladder) step(delay time.Duration) (step, rest time.Duration) {
	return l.steps.Pick(delay, l.slack(driver.CeilMillis(delay)))
}
