package rabbitmq

import (
	"slices"
	"time"

	"github.com/redrive-go/redrive/brokers/driver"
)

// delaySteps is the delays that have a queue. RabbitMQ can only expire the message at the head of a queue, so each
// delay needs a separate one; a short delay behind a long one would wait for it.
type delaySteps struct {
	steps   driver.Steps
	percent int // by how much a delay may be rounded up
}

// The grid serves delays that are not configured: powers of two from 50 ms to 14.5 h, 21 queues.
const (
	gridFirst = 50 * time.Millisecond
	gridLast  = 24 * time.Hour
)

func newDelaySteps(named []time.Duration, grid bool, percent int) delaySteps {
	steps := slices.Clone(named)
	if grid {
		for d := gridFirst; d <= gridLast; d *= 2 {
			steps = append(steps, d)
		}
	}
	return delaySteps{steps: driver.NewSteps(steps...), percent: percent}
}

// slack is how late a message may be because its delay was rounded up: half of the promise (1 %, or 100 ms); the other
// half is for delivery.
func (l delaySteps) slack(delay time.Duration) time.Duration {
	return max(delay*time.Duration(l.percent)/200, 50*time.Millisecond)
}

// step chooses the queue for a delay and returns the rest, for which the message is sent on afterwards.
func (l delaySteps) step(delay time.Duration) (step, rest time.Duration) {
	return l.steps.Pick(delay, l.slack(driver.CeilMillis(delay)))
}
