package brokertest

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// Harness describes how the suite reaches a broker.
type Harness struct {
	// Backend prepares what the brokers of one case share: a server, or memory of this process. Required. It is called
	// once per run of a case, within the case's synctest bubble if Virtual is set.
	Backend func(t *testing.T) Backend

	// Alone prepares a backend that no other broker of the process uses, for cases that erase more than their own topics.
	// Defaults to Backend.
	Alone func(t *testing.T) Backend

	// Virtual runs every case in a synctest bubble, for brokers without real I/O. Schedules are then checked exactly.
	Virtual bool
	// Factor scales the timelines, to shorten the waits on a real broker: with 0.05, ten seconds take half a second.
	// Defaults to 1. Virtual time is never scaled.
	Factor float64
	// Late is how late a message may be on a busy machine, in addition to Capabilities.DelayTolerance. A case that is late
	// runs again: a machine may be busy once, but a faulty broker is late each time. Defaults to 500 ms. In virtual time
	// nothing is late.
	Late time.Duration
	// Wait is how long the suite waits, without any progress, for something that must happen. Defaults to 2 minutes.
	Wait time.Duration
	// Quiet is how long the suite checks that nothing more happens. To find a hot loop, it counts deliveries for six times
	// as long. Defaults to 500 ms.
	Quiet time.Duration
	// Volume is the number of messages in cases that need many. Defaults to 1000.
	Volume int
	// Sequential runs one case at a time, for servers that cannot handle more.
	Sequential bool
	// Parts is how many subscriptions of one group can receive messages of a topic at once, on brokers with partitions;
	// further ones receive nothing. 0 means any number.
	Parts int

	// Watermill lists the features for Watermill's own suite, pubsub/tests. If nil, that suite is not run.
	Watermill *tests.Features
	// TopicsApart gives each topic of Watermill's own suite a separate group. It is for brokers on which the members of a
	// group wait for each other even if their topics differ: the suite subscribes to two topics, and reads the second
	// after the first.
	TopicsApart bool
	// Except names cases to skip, each with the reason why the broker cannot pass it.
	Except map[string]string
}

// Backend is what the brokers of one case share.
type Backend struct {
	// Open adds the URL of the backend to cfg and opens a broker with it. Brokers opened on one Backend share its queues,
	// as processes do. Open must be safe for concurrent use. Required.
	Open func(cfg brokers.Config) (brokers.Broker, error)
	// OpenOther is Open for another server of that kind. If delayed messages wait in another broker, those of both wait in
	// the same one. Nil if there is only one server.
	OpenOther func(cfg brokers.Config) (brokers.Broker, error)
	// Read removes n messages from the queue of that name with a plain client, or fewer if there are no more. If nil, the
	// suite subscribes to the name as if it were a topic.
	Read func(t *testing.T, queue string, n int) []*message.Message
	// Foreign publishes m like a producer that does not use this module, with all of its metadata as headers. It fails if
	// the server refuses m. Nil if no such producer exists.
	Foreign func(t *testing.T, topic string, m *message.Message) error
	// Lock locks the stored message with that id, like an operator's session that inspects it, and returns the function
	// that unlocks it. Nil if a message cannot be locked.
	Lock func(t *testing.T, id string) (unlock func())
	// Delete removes the stored message with that id, even while a handler runs for it. Nil if a message cannot be removed
	// while a consumer has it.
	Delete func(t *testing.T, id string)
	// Erase removes everything that the broker stores for topic and the consumers of its default group, which have the
	// names n, with all messages, as an operator does with the server's own tools. Nil if there is nothing to remove.
	Erase func(t *testing.T, topic string, n brokers.Names)
}

func (h *Harness) setDefaults() {
	if h.Factor == 0 || h.Virtual {
		h.Factor = 1
	}
	h.Late = cmp.Or(h.Late, 500*time.Millisecond)
	h.Wait = cmp.Or(h.Wait, 2*time.Minute)
	h.Quiet = cmp.Or(h.Quiet, 500*time.Millisecond)
	h.Volume = cmp.Or(h.Volume, 1000)
}

// casePrefix begins the names of the methods of world that are cases.
const casePrefix = "Test"

// Run runs the suite as subtests of t.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Backend == nil {
		t.Fatal("brokertest: Harness.Backend is required")
	}
	h.setDefaults()
	cases := reflect.TypeFor[*world]()
	for name := range h.Except {
		if _, known := cases.MethodByName(casePrefix + name); name != watermillSuite && name != goroutineCase && !known {
			t.Fatalf("brokertest: Harness.Except names the unknown case %q", name)
		}
	}

	run := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			if reason, ok := h.Except[name]; ok {
				t.Skipf("excepted by the harness: %s", reason)
			}
			test(t)
		})
	}
	// This one runs first, while no other case has goroutines.
	run(goroutineCase, func(t *testing.T) { t.Helper(); noGoroutineIsLeft(t, h) })
	for method := range cases.Methods() {
		name, isCase := strings.CutPrefix(method.Name, casePrefix)
		if !isCase {
			continue
		}
		run(name, func(t *testing.T) {
			t.Helper()
			test := method.Func.Interface().(func(*world))
			if h.Virtual {
				synctest.Test(t, func(t *testing.T) { test(newWorld(t, h)) })
				return
			}
			if !h.Sequential {
				t.Parallel()
			}
			runInTime(t, h, test)
		})
	}
	if h.Watermill != nil {
		run(watermillSuite, func(t *testing.T) { t.Helper(); watermillsOwnSuite(t, h) })
	}
}

// lateRuns is how often a case may be late before it fails.
const lateRuns = 5

// runInTime runs a case, and repeats it if it was late, each time with timelines twice as long: that gives a busy
// machine the time it needs, while a faulty broker is late again.
func runInTime(t *testing.T, h Harness, test func(*world)) {
	t.Helper()
	w := newWorld(t, h)
	test(w)
	for n := 1; w.late != "" && !t.Failed(); n++ {
		if n == lateRuns {
			t.Fatalf("late in each of %d runs: %s", n, w.late)
		}
		t.Logf("late, runs again: %s", w.late)
		h.Factor *= 2
		t.Run("again "+strconv.Itoa(n), func(t *testing.T) {
			w = newWorld(t, h)
			test(w)
		})
	}
}

const watermillSuite = "WatermillsOwnSuite"

// watermillsOwnSuite runs pubsub/tests. That suite leaves messages unacked at Close, so the drain timeout is short.
func watermillsOwnSuite(t *testing.T, h Harness) {
	t.Helper()
	backend := h.Backend(t)
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		b, err := backend.Open(brokers.Config{
			Group: group, DrainTimeout: time.Second, PublishTimeout: h.Wait, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		if h.TopicsApart {
			return b.Publisher(), &apart{broker: b, group: group, topics: map[string]message.Subscriber{}}
		}
		return b.Publisher(), b.Subscriber()
	}
	tests.TestPubSub(t, *h.Watermill,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			// Each test has its own group: on Kafka the members of a group are rebalanced together even if their topics differ,
			// and each rebalance would wait for another test's unacked messages.
			return construct(t, "watermill-"+path.Base(t.Name()))
		},
		construct)
}

// apart is a Subscriber with a separate group for each topic.
type apart struct {
	broker brokers.Broker
	group  string

	mu     sync.Mutex
	topics map[string]message.Subscriber
}

func (a *apart) of(topic string) message.Subscriber {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.topics[topic] == nil {
		a.topics[topic] = a.broker.Subscriber(brokers.WithGroup(a.group + "-" + topic))
	}
	return a.topics[topic]
}

// Subscribe implements message.Subscriber.
func (a *apart) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return a.of(topic).Subscribe(ctx, topic)
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (a *apart) SubscribeInitialize(topic string) error {
	return a.of(topic).(message.SubscribeInitializer).SubscribeInitialize(topic)
}

// Close implements message.Subscriber.
func (a *apart) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, s := range a.topics {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
