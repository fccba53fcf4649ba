package brokertest

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// A first-delivery delay of a minute is not used for retries, which have their own delays.
func (w *world) TestFirstDeliveryDelay_DoesNotChangeTheRetryDelay() {
	b, topic := w.openTopic("reminders")
	first, retry := w.scaled(time.Minute), w.scaled(2*time.Second)
	c := w.consume(b, topic, middleware.Config{Backoff: middleware.Constant(retry)}, failsBefore(3))

	m := newMessage("remind")
	m.Metadata.Set(envelope.KeyConsumer, "payments") // left over from the dead letter of another consumer
	envelope.SetDelay(m, first)
	published := time.Now()
	w.publish(b, topic, m)
	runs := c.waitRuns(3)
	c.quiet()

	w.onTime(published, runs[0].At, first)
	w.onTime(runs[0].At, runs[1].At, retry)
	w.onTime(runs[1].At, runs[2].At, retry)
	for _, r := range runs {
		require.Equal(w, strconv.FormatInt(first.Milliseconds(), 10), r.Message.Metadata.Get(envelope.KeyOriginalDelay),
			"no retry changes it")
		require.Empty(w, r.Message.Metadata.Get(envelope.KeyDelay), "the request was consumed by the publisher")
	}
}

// Two servers have a topic and a group of one name each, and share the place where delayed messages wait. What is
// published to one of them, and its retries, must not reach the other.
func (w *world) TestDelays_OfAnotherServerAreLeftToIt() {
	if w.backend.OpenOther == nil {
		w.Skip("delayed messages wait in the server itself")
	}
	topic, mine := w.topic("reminders"), w.open()
	w.backend.Open = w.backend.OpenOther
	other := w.open()
	fails := middleware.Config{Backoff: middleware.Constant(w.scaled(2 * time.Second))}
	here, there := w.consume(mine, topic, fails, failsBefore(3)), w.consume(other, topic, fails, failsBefore(3))
	const n = 20
	for i := range n {
		m := newMessage("delayed " + strconv.Itoa(i))
		envelope.SetDelay(m, w.scaled(10*time.Second))
		w.publish(mine, topic, m)
	}
	here.waitRuns(3 * n)
	here.quiet()
	require.Empty(w, there.seen())
}

func (w *world) TestFirstDeliveryDelay_OfWatermillIsHonoured() {
	b, topic := w.openTopic("reminders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })

	wait := w.scaled(10 * time.Second)
	m := newMessage("remind")
	delay.Message(m, delay.For(wait))
	published := time.Now()
	w.publish(b, topic, m)
	w.onTime(published, c.waitRuns(1)[0].At, wait)
}

// A queue with one time to live per message would hold the short delay behind the long one.
func (w *world) TestDelays_AShortOneOvertakesALongOne() {
	b, topic := w.openTopic("reminders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })

	w.publish(b, topic, newMessage("none"))
	c.waitRuns(1) // a consumer that joins late would find a short delay already over

	published := time.Now()
	long, short := newMessage("long"), newMessage("short")
	envelope.SetDelay(long, w.scaled(40*time.Second))
	envelope.SetDelay(short, w.scaled(5*time.Second))
	w.publish(b, topic, long, short)
	runs := c.waitRuns(3)

	require.Equal(w, "none", string(runs[0].Message.Payload))
	if string(runs[1].Message.Payload) == "long" && !w.h.Virtual {
		w.late = "the short delay was not over before the long one"
		return
	}
	require.Equal(w, "short", string(runs[1].Message.Payload))
	require.Equal(w, "long", string(runs[2].Message.Payload))
	w.onTime(published, runs[1].At, w.scaled(5*time.Second))
	w.onTime(published, runs[2].At, w.scaled(40*time.Second))
}

// Jitter and Retry-After request delays that are not configured. They may be late by a quarter, but never early.
func (w *world) TestDelays_OfAnyLengthAreKept() {
	b, topic := w.openTopic("orders", concurrency(8))
	var mu sync.Mutex
	asked := map[string]time.Time{}
	waits := []time.Duration{
		w.scaled(1_370 * time.Millisecond), w.scaled(2_990 * time.Millisecond), w.scaled(7_777 * time.Millisecond),
		w.scaled(31_007 * time.Millisecond),
	}
	wait := func(m *message.Message) time.Duration { return waits[m.Payload[0]-'0'] }
	c := w.consume(b, topic, middleware.Config{}, func(r run) error {
		mu.Lock()
		defer mu.Unlock()
		if _, again := asked[r.id()]; again {
			return nil
		}
		asked[r.id()] = time.Now()
		return middleware.RetryAfter(errFails, wait(r.Message))
	})
	w.publish(b, topic, w.batch(len(waits))...)
	runs := c.waitRuns(2 * len(waits))
	c.quiet()
	mu.Lock()
	defer mu.Unlock()
	for _, r := range runs {
		if r.Attempt == 1 {
			continue
		}
		due, took := wait(r.Message), r.At.Sub(asked[r.id()])
		if w.h.Virtual {
			require.Equal(w, due, took)
			continue
		}
		require.GreaterOrEqual(w, took, due-time.Millisecond, "early")
		w.noLater(took, due+due/4)
	}
}

func (w *world) TestDelays_BeyondTheLimitAreRefused() {
	b := w.open()
	limit := b.Capabilities().MaxDelay
	if limit == math.MaxInt64 {
		w.Skip("no delay is longer than the longest time.Duration")
	}
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })
	w.publish(b, topic, newMessage("first"))
	origin := c.waitRuns(1)[0].Origin

	require.ErrorIs(w, b.Reschedule(w.Context(), origin, newMessage("too long"), limit+time.Millisecond),
		brokers.ErrUnsupported)
	require.ErrorIs(w, brokers.Require(b, brokers.Needs{Delays: []time.Duration{limit + 1}}), brokers.ErrUnsupported)
	require.NoError(w, brokers.Require(b, brokers.Needs{Delays: []time.Duration{limit}}))
}

// With [0,1,5] the first retry is immediate.
func (w *world) TestDelays_ZeroAndNegativeMeanNow() {
	b, topic := w.openTopic("orders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })
	w.publish(b, topic, newMessage("first"))
	origin := c.waitRuns(1)[0].Origin

	for i, d := range []time.Duration{0, -time.Hour} {
		asked := time.Now()
		require.NoError(w, b.Reschedule(w.Context(), origin, newMessage("again"), d))
		w.onTime(asked, c.waitRuns(2 + i)[1+i].At, 0)
	}
}

var errFails = errors.New("the payment service is down")

// timeline is the history of a message that always fails.
type timeline struct {
	scheme   brokers.NameScheme
	delay    time.Duration // first-delivery delay
	config   middleware.Config
	schedule []time.Duration // of the runs, relative to the first one
}

// Five runs, then the dead letter queue, with retry_count 5.
func (w *world) TestTimelineA_FiveRunsThenDead() {
	w.follow(timeline{
		scheme:   brokers.Laravel(),
		config:   middleware.Laravel(5),
		schedule: []time.Duration{0, 0, 0, 0, 0},
	})
}

// Ten seconds before the first run, then retries after 10, 20 and 40 s, then dead.
func (w *world) TestTimelineB_RetriesDoubleFromTheOriginalDelay() {
	w.follow(timeline{
		scheme:   brokers.DelayedBackoff(),
		delay:    10 * time.Second,
		config:   middleware.DelayedBackoff(3, time.Second),
		schedule: []time.Duration{0, 10 * time.Second, 30 * time.Second, 70 * time.Second},
	})
}

// Three tries with [1,5,60].
func (w *world) TestTimelineD_ThreeTries() {
	w.follow(timeline{
		scheme:   brokers.DefaultNames(),
		config:   middleware.ServiceBus(3, w.scaled(time.Second), w.scaled(5*time.Second), w.scaled(time.Minute)),
		schedule: []time.Duration{0, time.Second, 6 * time.Second},
	})
}

// Five tries with [1,5,60]; the last value repeats.
func (w *world) TestTimelineD_FiveTries() {
	w.follow(timeline{
		scheme:   brokers.DefaultNames(),
		config:   middleware.ServiceBus(5, w.scaled(time.Second), w.scaled(5*time.Second), w.scaled(time.Minute)),
		schedule: []time.Duration{0, time.Second, 6 * time.Second, 66 * time.Second, 126 * time.Second},
	})
}

// Three cycles of five seconds, then the limbo queue.
func (w *world) TestTimelineE_CyclesThenLimbo() {
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
	b, topic := w.openTopic("orders", naming(tl.scheme), func(c *brokers.Config) { c.Delays = w.gaps(tl.schedule) })
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
