package rabbitmq_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// delayCase is one way to delay a message.
type delayCase struct {
	delay    func() time.Duration
	first    bool // the first delivery is delayed, not the retry
	settings []func(*brokers.Config)
	late     func(delay time.Duration) time.Duration // how late it may be
}

// No delayed message is early, and none is lost. First deliveries, delays that the error requests (Retry-After) and
// delays that the policy names are late by at most 1 % or 100 ms, jittered ones by at most a quarter.
//
// This test is not parallel, because it measures time. The promise is for a broker that is not overloaded, and other
// programs share its cores and its disk. So raw messages wait alongside ours in a queue with a TTL, the lateness of the
// latest of them is allowed for, and the median must keep the promise: the very latest message waits for the disk while
// the queues of the first ones are declared. TestLadder_NeverEarlyAndRarelyLate shows that each delay is rounded up by
// no more than half of what is promised.
func TestDelays_Accuracy(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	upTo := func(d time.Duration) time.Duration {
		return time.Duration(random.Int64N(d.Milliseconds())) * time.Millisecond
	}
	anyDelay := func() time.Duration { return upTo(4 * time.Second) }
	named := func() time.Duration { return 1500 * time.Millisecond }
	exact := func(d time.Duration) time.Duration { return max(d/100, 100*time.Millisecond) }
	onlyNamed := []func(*brokers.Config){delays(named()), params("grid", "false")}

	for name, tc := range map[string]delayCase{
		"first delivery, any":   {delay: anyDelay, first: true, late: exact},
		"first delivery, named": {delay: named, first: true, settings: onlyNamed, late: exact},
		"retry, named":          {delay: named, settings: onlyNamed, late: exact},
		"Retry-After":           {delay: anyDelay, late: exact},
		"jittered": {
			delay: func() time.Duration { return time.Second + upTo(3*time.Second) }, late: exact,
		},
		"classic queues": {
			delay: anyDelay, late: exact,
			settings: []func(*brokers.Config){params("queue-type", "classic", "retry-queue-type", "classic")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				late, noise := tc.measure(t)
				if late <= 2*noise { // some delays wait in two queues
					return
				}
				require.Less(t, n, attempts, "later than promised, each time")
				require.Greater(t, noise, quiet, "later than promised, although the machine is not busy")
			}
		})
	}
}

const (
	// attempts is how often the delays are measured on a busy machine: other programs rarely slow down only ours three
	// times in a row, and a faulty broker is late each time.
	attempts = 3
	// quiet is how late raw messages may be on a machine that is not busy.
	quiet = 100 * time.Millisecond
)

// measure delays 150 messages, and returns by how much the median is later than promised, and how late raw messages
// were at most.
func (tc delayCase) measure(t *testing.T) (late, raw time.Duration) {
	t.Helper()
	const n = 150
	url := services.SharedRabbitMQ(t).VHost(t)
	control := newControl(t, url)
	b := openBroker(t, url, append(tc.settings, func(c *brokers.Config) { c.Concurrency = 32 })...)
	wanted := make([]time.Duration, n)
	for i := range wanted {
		wanted[i] = tc.delay()
	}
	watch := newStopwatch(n)
	s := serve(t, b, "orders", middleware.Config{}, func(m *message.Message) error {
		now := time.Now()
		i, err := strconv.Atoi(m.UUID)
		if err != nil {
			return middleware.Permanent(err)
		}
		if a, _ := middleware.AttemptFrom(m.Context()); !tc.first && a.Number == 1 {
			watch.start(i)
			return middleware.RetryAfter(errDown, wanted[i])
		}
		watch.stop(i, now)
		return nil
	})
	pub := b.Publisher()
	if tc.first { // the first message declares the queues in which first deliveries wait
		first := newMessage("x")
		envelope.SetDelay(first, 24*time.Hour)
		require.NoError(t, pub.Publish("orders", first))
	}
	spread(8, n, func(i int) {
		m := message.NewMessage(strconv.Itoa(i), []byte("x"))
		if tc.first {
			watch.start(i)
			envelope.SetDelay(m, wanted[i])
		}
		if err := pub.Publish("orders", m); err != nil {
			t.Error(err)
		}
	})
	lags := make([]time.Duration, 0, n)
	excess := make([]time.Duration, 0, n) // later than promised
	for range n {
		select {
		case l := <-watch.laps:
			require.GreaterOrEqual(t, l.took, wanted[l.i], "early")
			lags = append(lags, l.took-wanted[l.i])
			excess = append(excess, l.took-wanted[l.i]-tc.late(wanted[l.i]))
		case <-time.After(patience):
			require.FailNow(t, "messages are missing", "%d of %d", len(lags), n)
		}
	}
	noise := control.stop(t)
	s.stop()
	slices.Sort(lags)
	slices.Sort(excess)
	t.Logf("late: p50 %s, p99 %s, most %s; raw %s", lags[n/2], lags[n*99/100], lags[n-1], noise)
	return excess[n/2], noise
}

// control measures how late RabbitMQ itself is at the same time, with raw messages that wait in a queue with a TTL.
type control struct {
	done   chan struct{}
	finish func()             // closes done
	latest chan time.Duration // nothing if a message was lost
}

const controlTTL = 500 * time.Millisecond

// newControl sends a raw message every 25 ms until stop.
func newControl(t *testing.T, url string) *control {
	t.Helper()
	p := dialPlain(t, url)
	for name, args := range map[string]amqp.Table{
		"control": {"x-queue-type": "quorum"},
		"control-wait": {
			"x-queue-type": "quorum", "x-message-ttl": controlTTL.Milliseconds(), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "control",
		},
	} {
		_, err := p.ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	}
	deliveries, err := p.ch.Consume("control", "", true, false, false, false, nil)
	require.NoError(t, err)
	c := &control{done: make(chan struct{}), latest: make(chan time.Duration, 1)}
	c.finish = sync.OnceFunc(func() { close(c.done) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(c.latest)
		c.run(t, p, deliveries)
	}()
	t.Cleanup(func() {
		c.finish()
		<-ended
	})
	return c
}

func (c *control) run(t *testing.T, p *plain, deliveries <-chan amqp.Delivery) {
	t.Helper()
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	var (
		sent   []time.Time
		latest time.Duration
		tick   = ticker.C
		done   = c.done
	)
	for came := 0; tick != nil || came < len(sent); {
		select {
		case <-tick:
			message := amqp.Publishing{MessageId: strconv.Itoa(len(sent))}
			sent = append(sent, time.Now())
			if err := p.ch.PublishWithContext(t.Context(), "", "control-wait", true, false, message); err != nil {
				t.Error(err)
				return
			}
		case d := <-deliveries:
			i, err := strconv.Atoi(d.MessageId)
			if err != nil || i >= len(sent) {
				t.Errorf("received raw message %q, which was not sent", d.MessageId)
				return
			}
			latest = max(latest, time.Since(sent[i])-controlTTL)
			came++
		case <-done:
			tick, done = nil, nil
		case <-time.After(patience):
			t.Error("raw messages are missing")
			return
		}
	}
	c.latest <- latest
}

// stop returns how late the latest raw message was.
func (c *control) stop(t *testing.T) time.Duration {
	t.Helper()
	c.finish()
	latest, ok := <-c.latest
	require.True(t, ok)
	return latest
}

// stopwatch records the times of numbered messages. Of one that is handled twice, the first times count.
type stopwatch struct {
	mu    sync.Mutex
	began []time.Time
	ended []bool
	laps  chan lap
}

type lap struct {
	i    int
	took time.Duration
}

func newStopwatch(n int) *stopwatch {
	return &stopwatch{began: make([]time.Time, n), ended: make([]bool, n), laps: make(chan lap, n)}
}

func (w *stopwatch) start(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.began[i].IsZero() {
		w.began[i] = time.Now()
	}
}

func (w *stopwatch) stop(i int, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended[i] {
		w.ended[i] = true
		w.laps <- lap{i, at.Sub(w.began[i])}
	}
}

// RabbitMQ 3 shows a new quorum queue to other connections before it sets its x-message-ttl. A message that arrives in
// between must still expire, because one that never did would block those behind it forever.
func TestDelays_IntoAQueueThatIsBeingDeclared(t *testing.T) {
	t.Parallel()
	const delay = 200 * time.Millisecond
	server := services.SharedRabbitMQ(t)
	url := server.VHost(t)
	b := openBroker(t, url, delays(delay), params("grid", "false"))
	s := serve(t, b, "orders", middleware.Config{MaxAttempts: 2, Backoff: middleware.Constant(delay)}, fails)
	_, err := server.Ctl(t.Context(), "eval", fmt.Sprintf(
		`{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"orders_retry.200">>)),
		ok = rabbit_fifo_client:update_machine_state(amqqueue:get_pid(Q),
			#{dead_letter_handler => at_least_once, overflow_strategy => reject_publish}).`, path.Base(url)))
	if errors.Is(err, services.ErrExternal) { // a server of TEST_AMQP_URL: rabbitmqctl does not reach it
		err = &services.UnavailableError{Service: "rabbitmq", Env: "TEST_AMQP_URL", Cause: err}
	}
	services.Need(t, err)
	for range 3 {
		require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
	}
	for range 2 * 3 {
		s.next()
	}
}

// The longest delay.
func TestDelays_LongestIsThirtyDays(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()))
	origin := envelope.Origin{Topic: "orders", Consumer: "orders"}
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
	require.NoError(t, b.Reschedule(t.Context(), origin, newMessage("x"), 30*24*time.Hour))
	require.ErrorIs(t, b.Reschedule(t.Context(), origin, newMessage("x"), 31*24*time.Hour), brokers.ErrUnsupported)
	require.Equal(t, 30*24*time.Hour, b.Capabilities().MaxDelay)
}
