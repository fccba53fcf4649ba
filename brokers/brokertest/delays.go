package brokertest

import (
	"errors"
	"fmt"
	"math"
	"strconv"
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

	m := delayed("remind", first)
	m.Metadata.Set(envelope.KeyConsumer, "payments") // left over from the dead letter of another consumer
	published := time.Now()
	w.publish(b, topic, m)
	runs := c.exactly(3)

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
	w.skipIf(w.backend.OpenOther == nil, "there is no other server")
	topic, mine := w.topic("reminders"), w.open()
	w.backend.Open = w.backend.OpenOther
	other := w.open()
	retry := middleware.Config{Backoff: middleware.Constant(w.scaled(2 * time.Second))}
	here, there := w.consume(mine, topic, retry, failsBefore(3)), w.consume(other, topic, retry, failsBefore(3))
	const n = 20
	for range n {
		w.publish(mine, topic, delayed("remind", w.scaled(10*time.Second)))
	}
	here.exactly(3 * n)
	require.Empty(w, there.seen())
}

func (w *world) TestFirstDeliveryDelay_OfWatermillIsHonoured() {
	b, topic := w.openTopic("reminders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)

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
	c := w.consume(b, topic, middleware.Config{}, succeeds)

	w.publish(b, topic, newMessage("none"))
	c.waitRuns(1) // a consumer that joins late would find a short delay already over

	published := time.Now()
	w.publish(b, topic, delayed("long", w.scaled(40*time.Second)), delayed("short", w.scaled(5*time.Second)))
	runs := c.waitRuns(3)

	if runs[1].payload() == "long" && !w.h.Virtual {
		w.late = "the short delay was not over before the long one"
		return
	}
	require.Equal(w, []string{"none", "short", "long"}, payloadsOf(runs[:3]))
	w.onTime(published, runs[1].At, w.scaled(5*time.Second))
	w.onTime(published, runs[2].At, w.scaled(40*time.Second))
}

// Jitter and Retry-After request delays that are not configured. They may be late by a quarter, but never early.
func (w *world) TestDelays_OfAnyLengthAreKept() {
	b, topic := w.openTopic("orders", concurrency(8))
	waits := []time.Duration{
		w.scaled(1_370 * time.Millisecond), w.scaled(2_990 * time.Millisecond), w.scaled(7_777 * time.Millisecond),
		w.scaled(31_007 * time.Millisecond),
	}
	wait := func(m *message.Message) time.Duration { return waits[m.Payload[0]-'0'] }
	c := w.consume(b, topic, middleware.Config{}, func(r run) error {
		if r.Attempt > 1 {
			return nil
		}
		return middleware.RetryAfter(errFails, wait(r.Message))
	})
	w.publish(b, topic, w.batch(len(waits))...)
	asked := map[string]time.Time{}
	for _, r := range c.exactly(2 * len(waits)) {
		if r.Attempt == 1 {
			asked[r.id()] = r.At
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
	w.skipIf(limit == math.MaxInt64, "no delay is longer than the longest time.Duration")
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
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
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	w.publish(b, topic, newMessage("first"))
	origin := c.waitRuns(1)[0].Origin

	for i, d := range []time.Duration{0, -time.Hour} {
		asked := time.Now()
		require.NoError(w, b.Reschedule(w.Context(), origin, newMessage("again"), d))
		w.onTime(asked, c.waitRuns(2 + i)[1+i].At, 0)
	}
}

var errFails = errors.New("the payment service is down")

// Five runs, then the dead letter queue, with retry_count 5.
func (w *world) TestTimelineA_FiveRunsThenDead() {
	w.follow(brokers.Laravel(), middleware.Laravel(5), 0, seconds(0, 0, 0, 0, 0))
}

// Ten seconds before the first run, then retries after 10, 20 and 40 s, then dead.
func (w *world) TestTimelineB_RetriesDoubleFromTheOriginalDelay() {
	w.follow(brokers.DelayedBackoff(), middleware.DelayedBackoff(3, time.Second), 10*time.Second, seconds(0, 10, 30, 70))
}

// Three tries with [1,5,60].
func (w *world) TestTimelineD_ThreeTries() { w.followServiceBus(3, seconds(0, 1, 6)) }

// Five tries with [1,5,60]; the last value repeats.
func (w *world) TestTimelineD_FiveTries() { w.followServiceBus(5, seconds(0, 1, 6, 66, 126)) }

func (w *world) followServiceBus(tries int, schedule []time.Duration) {
	policy := middleware.ServiceBus(tries, w.scaled(time.Second), w.scaled(5*time.Second), w.scaled(time.Minute))
	w.follow(brokers.DefaultNames(), policy, 0, schedule)
}

// Three cycles of five seconds, then the limbo queue.
func (w *world) TestTimelineE_CyclesThenLimbo() {
	w.follow(brokers.TTLCycle(""), middleware.TTLCycle(3, w.scaled(5*time.Second)), 0, seconds(0, 5, 10, 15))
}

func seconds(list ...time.Duration) []time.Duration {
	for i := range list {
		list[i] *= time.Second
	}
	return list
}

func (w *world) steps(delays ...time.Duration) middleware.Backoff {
	return middleware.Steps(mapped(delays, w.scaled)...)
}

// follow publishes a message that always fails, with a first-delivery delay if it is not 0, and compares its runs with
// the schedule, which is relative to the first of them.
func (w *world) follow(s brokers.NameScheme, cfg middleware.Config, delay time.Duration, schedule []time.Duration) {
	b, topic := w.openTopic("orders", naming(s), func(c *brokers.Config) { c.Delays = w.gaps(schedule) })
	c := w.consume(b, topic, cfg, fails)

	m := newMessage(`{"order": 1}`)
	if delay > 0 {
		envelope.SetDelay(m, w.scaled(delay))
	}
	published := time.Now()
	w.publish(b, topic, m)
	runs := c.exactly(len(schedule))

	w.onTime(published, runs[0].At, w.scaled(delay))
	for i, r := range runs {
		require.Equal(w, i+1, r.Attempt)
		if i > 0 {
			w.onTime(runs[i-1].At, r.At, w.scaled(schedule[i]-schedule[i-1]))
		}
	}

	dead := w.read(b, s.For(topic, defaultGroup).Dead, 1)[0]
	require.Equal(w, strconv.Itoa(len(schedule)), dead.Metadata.Get(envelope.KeyRetryCount), "failed runs")
	require.Equal(w, `{"order": 1}`, string(dead.Payload))
	require.Equal(w, string(envelope.ReasonExhausted), dead.Metadata.Get(envelope.KeyDeadLetterReason))
	if delay > 0 {
		require.Equal(w, strconv.FormatInt(w.scaled(delay).Milliseconds(), 10), dead.Metadata.Get(envelope.KeyOriginalDelay))
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
	require.GreaterOrEqual(w, took, delay-time.Millisecond, "early by more than the rounding of due times to milliseconds")
	w.noLater(took, delay+delay/100)
}

// noLater records when a message was later than the harness allows.
func (w *world) noLater(took, most time.Duration) {
	if most += w.tolerance + w.h.Late; took > most {
		w.late = fmt.Sprintf("%s, at most %s", took, most)
	}
}
