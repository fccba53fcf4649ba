package brokertest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// With one handler at a time, fifty messages are handled before the poison in front of them is retried.
func (w *world) TestPoison_DoesNotStopTheMessagesBehindIt() {
	b, topic := w.openTopic("orders")
	published := make(chan struct{})
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 3, Backoff: w.steps(time.Minute)}, func(r run) error {
		if r.payload() == "poison" {
			select { // its minute starts once all of them are queued behind it
			case <-published:
			case <-r.Message.Context().Done():
			}
			return errFails
		}
		return nil
	})
	w.publish(b, topic, newMessage("poison"))
	c.waitRuns(1)
	good := w.batch(50)
	w.publish(b, topic, good...)
	close(published)

	runs := c.waitRuns(51)
	early := slices.ContainsFunc(runs[:51], func(r run) bool { return r.Attempt > 1 })
	if early && !w.h.Virtual {
		w.late = "fifty messages took longer than the pause of the poison"
		return
	}
	require.ElementsMatch(w, ids(good), runIDs(runs[1:51]))
	require.Len(w, w.deadLetters(b, topic, 1), 1)
}

// window is how long deliveries are counted to find a hot loop; mostIn returns how many there may be in that time.
func (w *world) window() time.Duration { return 6 * w.h.Quiet }

func (w *world) mostIn(window time.Duration) int { return int(window / (100 * time.Millisecond)) }

// A plain broker redelivers a nacked message ten thousand times a second.
func (w *world) TestNack_IsPaced() {
	b, topic := w.openTopic("orders")
	sub, in := w.subscribe(b, topic)
	w.publish(b, topic, newMessage("nacked"))

	deliveries := 1
	receive(w, in, "the message").Nack() // joining a group may take longer than the window
	began, window := time.Now(), time.After(w.window())
	for watching := true; watching; {
		select {
		case m := <-in:
			deliveries++
			m.Nack()
		case <-window:
			watching = false
		}
	}
	require.LessOrEqual(w, deliveries, w.mostIn(time.Since(began)), "at most ten a second")
	m := receive(w, in, "the nacked message")
	require.Equal(w, "nacked", string(m.Payload))
	m.Ack()
	require.NoError(w, sub.Close())
}

func (w *world) TestRetryThatCannotBePublished_DoesNotSpin() {
	b, topic := w.openTopic("orders")
	var healed atomic.Bool
	cfg := middleware.Config{
		Backoff:   middleware.None(),
		NackDelay: 100 * time.Millisecond,
		Rescheduler: reluctant(b, func() error {
			if !healed.Load() {
				return errors.New("the broker accepts no retries")
			}
			return nil
		}),
	}
	c := w.consume(b, topic, cfg, failsBefore(2))
	began := time.Now()
	w.publish(b, topic, newMessage("order"))
	pause(w.window()) // while runs are counted
	require.LessOrEqual(w, len(c.seen()), w.mostIn(time.Since(began)), "at most ten runs a second")

	healed.Store(true)
	c.wait("the retry, once it can be published",
		func(runs []run) bool { return len(runs) > 0 && runs[len(runs)-1].Attempt == 2 })
	c.quiet()
}

func (w *world) TestDeadLetterThatCannotBePublished_IsNotLost() {
	b, topic := w.openTopic("orders")
	var left atomic.Int32
	left.Store(7)
	cfg := middleware.Config{
		MaxAttempts: 1,
		NackDelay:   100 * time.Millisecond,
		DeadLetters: middleware.DeadLetterFunc(func(ctx context.Context, d *envelope.DeadLetter) error {
			if left.Add(-1) >= 0 {
				return errors.New("the queue is full")
			}
			return b.DeadLetter(ctx, d)
		}),
	}
	w.consume(b, topic, cfg, fails)
	w.publish(b, topic, newMessage("order"))
	require.Equal(w, "order", string(w.deadLetters(b, topic, 1)[0].Payload))
}

func (w *world) TestManyWaitingRetries_AreAllRedelivered() {
	b, topic := w.openTopic("orders", concurrency(16))
	wait := w.scaled(5 * time.Second)
	c := w.consume(b, topic, middleware.Config{Backoff: middleware.Constant(wait)}, failsBefore(2))
	w.publish(b, topic, w.batch(w.h.Volume)...)
	runs := c.waitRuns(2 * w.h.Volume)
	c.quiet()

	first, second := map[string]time.Time{}, map[string]time.Time{}
	for _, r := range runs {
		if r.Attempt == 1 {
			first[r.id()] = r.At
		} else {
			second[r.id()] = r.At
		}
	}
	require.Len(w, first, w.h.Volume)
	require.Len(w, second, w.h.Volume)
	for id, at := range second {
		require.GreaterOrEqual(w, at.Sub(first[id]), wait-time.Millisecond, "early")
	}
}

// In = processed + dead. Of ten messages, six succeed in the first run, two in the second or third, one never, and one
// has a permanent error.
func (w *world) TestLargeBatch_IsProcessedOrDead() {
	b, topic := w.openTopic("orders", concurrency(16))
	kind := func(m *message.Message) int { return int(m.Payload[len(m.Payload)-1] - '0') }
	c := w.consume(b, topic, middleware.Config{MaxAttempts: 3, Backoff: w.steps(0, time.Second)}, func(r run) error {
		switch k := kind(r.Message); {
		case k == 9:
			return middleware.Permanent(errFails)
		case k == 8, k == 7 && r.Attempt < 3, k == 6 && r.Attempt < 2:
			return errFails
		}
		return nil
	})
	batch := w.batch(w.h.Volume)
	w.publish(b, topic, batch...)

	var wantDead, wantDone []string
	for _, m := range batch {
		if kind(m) >= 8 {
			wantDead = append(wantDead, m.UUID)
		} else {
			wantDone = append(wantDone, m.UUID)
		}
	}
	require.ElementsMatch(w, wantDead, ids(w.deadLetters(b, topic, len(wantDead))))

	done := func(runs []run) (ids []string) {
		for _, r := range runs {
			if k := kind(r.Message); k < 6 || k == 6 && r.Attempt == 2 || k == 7 && r.Attempt == 3 {
				ids = append(ids, r.id())
			}
		}
		return ids
	}
	runs := c.wait("all messages", func(runs []run) bool { return len(done(runs)) >= len(wantDone) })
	require.ElementsMatch(w, wantDone, done(runs), "processed once each")
}

// Exactly n handlers run at once: with fewer, the wait below never ends, and one more is counted.
func (w *world) TestConcurrency_RunsExactlyThatManyHandlers() {
	const n = 8
	b := w.open(concurrency(n))
	limit := b.Capabilities().MaxConcurrency
	w.skipIf(limit != 0 && limit < n, "the broker does not run as many handlers at once")
	topic := w.topic("orders")
	var running, most atomic.Int32
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{}, func(run) error {
		now := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		<-gate
		return nil
	})
	batch := w.batch(4 * n)
	w.publish(b, topic, batch...)
	c.waitRuns(n)
	c.quiet()
	require.EqualValues(w, n, most.Load())
	open()
	c.waitRuns(4 * n)
	require.EqualValues(w, n, most.Load(), "handlers at once")
	require.ElementsMatch(w, ids(batch), runIDs(c.seen()))
}

func (w *world) TestConcurrency_OneKeepsTheOrder() {
	b := w.open()
	w.skipIf(!b.Capabilities().Ordered, "the broker does not preserve order")
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	const n = 200
	var want []string
	for i := range n {
		m := newMessage(strconv.Itoa(i), "x-kafka-key", "one") // on brokers with keys, order holds per key
		want = append(want, m.UUID)
		w.publish(b, topic, m)
	}
	require.Equal(w, want, runIDs(c.waitRuns(n)))
}
