package brokertest

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

var errFails = errors.New("the payment service is down")

// timeline is the history of a message that always fails.
type timeline struct {
	scheme   brokers.NameScheme
	delay    time.Duration // first-delivery delay
	config   middleware.Config
	schedule []time.Duration // of the runs, relative to the first one
}

// Five runs, then the dead letter queue, with retry_count 5.
func timelineA(w *world) {
	w.follow(timeline{
		scheme:   brokers.Laravel(),
		config:   middleware.Laravel(5),
		schedule: []time.Duration{0, 0, 0, 0, 0},
	})
}

// Ten seconds before the first run, then retries after 10, 20 and 40 s, then dead.
func timelineB(w *world) {
	w.follow(timeline{
		scheme:   brokers.DelayedBackoff(),
		delay:    10 * time.Second,
		config:   middleware.DelayedBackoff(3, time.Second),
		schedule: []time.Duration{0, 10 * time.Second, 30 * time.Second, 70 * time.Second},
	})
}

// Three tries with [1,5,60].
func timelineD3(w *world) {
	w.follow(timeline{
		scheme:   brokers.DefaultNames(),
		config:   middleware.ServiceBus(3, w.scaled(time.Second), w.scaled(5*time.Second), w.scaled(time.Minute)),
		schedule: []time.Duration{0, time.Second, 6 * time.Second},
	})
}

// Five tries with [1,5,60]; the last value repeats.
func timelineD5(w *world) {
	w.follow(timeline{
		scheme:   brokers.DefaultNames(),
		config:   middleware.ServiceBus(5, w.scaled(time.Second), w.scaled(5*time.Second), w.scaled(time.Minute)),
		schedule: []time.Duration{0, time.Second, 6 * time.Second, 66 * time.Second, 126 * time.Second},
	})
}

// Three cycles of five seconds, then the limbo queue.
func timelineE(w *world) {
	w.follow(timeline{
		scheme:   brokers.TTLCycle(""),
		config:   middleware.TTLCycle(3, w.scaled(5*time.Second)),
		schedule: []time.Duration{0, 5 * time.Second, 10 * time.Second, 15 * time.Second},
	})
}

func (w *world) steps(delays ...time.Duration) middleware.Backoff {
	scaled := make([]time.Duration, len(delays))
	for i, d := range delays {
		scaled[i] = w.scaled(d)
	}
	return middleware.Steps(scaled...)
}

// follow publishes a message that always fails and compares its runs with the schedule.
func (w *world) follow(tl timeline) {
	b := w.open(naming(tl.scheme), func(c *brokers.Config) { c.Delays = w.gaps(tl.schedule) })
	topic := w.topic("orders")
	c := w.consume(b, topic, tl.config, func(run) error { return errFails })

	m := newMessage(`{"order": 1}`)
	if tl.delay > 0 {
		envelope.SetDelay(m, w.scaled(tl.delay))
	}
	published := time.Now()
	w.publish(b, topic, m)
	runs := c.waitRuns(len(tl.schedule))
	c.quiet()

	w.onTime(published, runs[0].At, w.scaled(tl.delay))
	for i, r := range runs {
		require.Equal(w, i+1, r.Attempt)
		if i > 0 {
			w.onTime(runs[i-1].At, r.At, w.scaled(tl.schedule[i]-tl.schedule[i-1]))
		}
	}

	dead := w.deadLetters(b, tl.scheme, topic, 1)[0]
	require.Equal(w, strconv.Itoa(len(tl.schedule)), dead.Metadata.Get(envelope.KeyRetryCount), "failed runs")
	require.Equal(w, `{"order": 1}`, string(dead.Payload))
	require.Equal(w, string(envelope.ReasonExhausted), dead.Metadata.Get(envelope.KeyDeadLetterReason))
	if tl.delay > 0 {
		require.Equal(w, strconv.FormatInt(w.scaled(tl.delay).Milliseconds(), 10),
			dead.Metadata.Get(envelope.KeyOriginalDelay))
	}
}

// gaps are the scaled delays of a schedule.
func (w *world) gaps(schedule []time.Duration) []time.Duration {
	var gaps []time.Duration
	for i := 1; i < len(schedule); i++ {
		if gap := w.scaled(schedule[i] - schedule[i-1]); gap > 0 {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}

// onTime requires that at is delay after from: never earlier, and no later than the harness allows.
func (w *world) onTime(from, at time.Time, delay time.Duration) {
	w.Helper()
	took := at.Sub(from)
	if w.h.Virtual {
		require.Equal(w, delay, took)
		return
	}
	require.GreaterOrEqual(w, took, delay-time.Millisecond,
		"early by more than the rounding of due times to milliseconds")
	w.noLater(took, delay+delay/100)
}

// noLater records when a message was later than the harness allows.
func (w *world) noLater(took, most time.Duration) {
	if most += w.tolerance + w.h.Late; took > most {
		w.late = fmt.Sprintf("%s, at most %s", took, most)
	}
}
