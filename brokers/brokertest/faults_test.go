package brokertest_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
)

// faulty is an in-memory broker that breaks one promise.
type faulty struct {
	*memory.Broker

	reschedule func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error
	deadLetter func(ctx context.Context, d *envelope.DeadLetter) error
	publisher  func() message.Publisher
}

func (f *faulty) Reschedule(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
	if f.reschedule != nil {
		return f.reschedule(ctx, o, m, d)
	}
	return f.Broker.Reschedule(ctx, o, m, d)
}

func (f *faulty) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if f.deadLetter != nil {
		return f.deadLetter(ctx, d)
	}
	return f.Broker.DeadLetter(ctx, d)
}

func (f *faulty) Publisher() message.Publisher {
	if f.publisher != nil {
		return f.publisher()
	}
	return f.Broker.Publisher()
}

// faults lists the faults, each with the case that must find it.
var faults = map[string]struct {
	finder    string
	real      bool // with this fault a case waits for a mutex, where virtual time does not advance
	configure func(c *brokers.Config)
	spoil     func(f *faulty)
}{
	"retries are early": {
		finder: "TimelineB_RetriesDoubleFromTheOriginalDelay",
		spoil: func(f *faulty) {
			f.reschedule = func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
				return f.Broker.Reschedule(ctx, o, m, d*99/100)
			}
		},
	},
	"retries go to the topic": {
		finder: "Retry_ReturnsOnlyToTheConsumerThatFailed",
		spoil: func(f *faulty) {
			f.reschedule = func(_ context.Context, o envelope.Origin, m *message.Message, _ time.Duration) error {
				return f.Broker.Publisher().Publish(o.Topic, m)
			}
		},
	},
	"a redrive needs a group of the same process": {
		finder: "Redrive_ReachesOnlyTheConsumerThatFailed",
		spoil: func(f *faulty) {
			f.reschedule = func(_ context.Context, o envelope.Origin, m *message.Message, _ time.Duration) error {
				return f.Broker.Publisher().Publish(o.Topic, m)
			}
		},
	},
	"a retry drops a foreign header": {
		finder: "Headers_SurviveRetryAndDeadLetter",
		spoil: func(f *faulty) {
			f.reschedule = func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
				delete(m.Metadata, "traceparent")
				return f.Broker.Reschedule(ctx, o, m, d)
			}
		},
	},
	"dead letters are made valid UTF-8": {
		finder: "Payloads_SurviveRetryAndDeadLetter",
		spoil: func(f *faulty) {
			f.deadLetter = func(ctx context.Context, d *envelope.DeadLetter) error {
				changed := *d
				changed.Message = d.Message.Copy()
				changed.Message.Payload = bytes.ToValidUTF8(d.Message.Payload, []byte("?"))
				return f.Broker.DeadLetter(ctx, &changed)
			}
		},
	},
	"dead letters do not name their consumer": {
		finder: "DeadLetters_NameTheirConsumer",
		spoil: func(f *faulty) {
			f.deadLetter = func(_ context.Context, d *envelope.DeadLetter) error {
				return f.Broker.Publisher().Publish(brokers.NameScheme{}.For(d.Origin.Topic, d.Origin.Consumer).Dead, d.Message)
			}
		},
	},
	"the largest message has no room for a retry": {
		finder:    "Largest_PayloadIsRetriedAndDeadLettered",
		configure: func(c *brokers.Config) { c.Params = brokers.Params{"max-message": "1MiB"} },
		spoil: func(f *faulty) {
			f.reschedule = func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
				if len(m.Payload)+len(m.Metadata.Get(envelope.KeyErrorTrace)) > 1<<20 {
					return brokers.ErrTooLarge
				}
				return f.Broker.Reschedule(ctx, o, m, d)
			}
		},
	},
	"dead letters are lost": {
		finder: "LargeBatch_IsProcessedOrDead",
		spoil: func(f *faulty) {
			f.deadLetter = func(context.Context, *envelope.DeadLetter) error { return nil }
		},
	},
	"the first-delivery delay is ignored": {
		finder: "FirstDeliveryDelay_OfWatermillIsHonoured",
		spoil: func(f *faulty) {
			f.publisher = func() message.Publisher { return &undelayed{f.Broker.Publisher()} }
		},
	},
	"handlers are cut off at shutdown": {
		finder:    "Shutdown_HandlersFinishAndTheirResultsArePublished",
		real:      true,
		configure: func(c *brokers.Config) { c.DrainTimeout = time.Nanosecond },
	},
	"a nack is a hot loop": {
		finder:    "Nack_IsPaced",
		configure: func(c *brokers.Config) { c.Params = brokers.Params{"nack-pause": "1ms"} },
	},
	"one handler too many": {
		finder:    "Concurrency_RunsExactlyThatManyHandlers",
		configure: func(c *brokers.Config) { c.Concurrency++ },
	},
	"closing a publisher ends it for every handler": {
		finder: "Shutdown_ResultsArePublishedBySharedPublishers",
		spoil: func(f *faulty) {
			f.publisher = func() message.Publisher { return &ending{Publisher: f.Broker.Publisher()} }
		},
	},
	"a goroutine is left": {
		finder: "Close_LeavesNoGoroutine",
		spoil:  func(*faulty) { go func() { select {} }() },
	},
}

type ending struct {
	message.Publisher

	closed atomic.Bool
}

func (e *ending) Publish(topic string, messages ...*message.Message) error {
	if e.closed.Load() {
		return brokers.ErrClosed
	}
	return e.Publisher.Publish(topic, messages...)
}

func (e *ending) Close() error {
	e.closed.Store(true)
	return nil
}

type undelayed struct{ message.Publisher }

func (u *undelayed) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		envelope.TakeDelay(m)
	}
	return u.Publisher.Publish(topic, messages...)
}

const faultVariable = "BROKERTEST_FAULT"

// A suite that no broker can fail proves nothing. Each faulty broker is tested in its own process, and the case for its
// fault must fail.
func TestRun_FindsFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=10m",
				"-test.run=^TestFaultyBroker$/^"+fault.finder+"$")
			suite.Env = append(os.Environ(), faultVariable+"="+name)
			out, err := suite.CombinedOutput()
			require.Error(t, err, "the suite passed")
			require.Contains(t, string(out), "--- FAIL: TestFaultyBroker/"+fault.finder+" (")
		})
	}
}

// TestFaultyBroker is what TestRun_FindsFaults runs in the other process.
func TestFaultyBroker(t *testing.T) {
	fault, ok := faults[os.Getenv(faultVariable)]
	if !ok {
		t.Skip("run by TestRun_FindsFaults, which sets " + faultVariable)
	}
	brokertest.Run(t, brokertest.Harness{
		Virtual: !fault.real, Volume: 100,
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			return faultyBackend(t, fault.configure, fault.spoil)
		},
	})
}

func faultyBackend(t *testing.T, configure func(*brokers.Config), spoil func(*faulty)) brokertest.Backend {
	t.Helper()
	var first *memory.Broker
	var once sync.Once
	return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
		if configure != nil {
			configure(&cfg)
		}
		once.Do(func() {
			b, err := memory.New(cfg)
			require.NoError(t, err)
			first = b
			t.Cleanup(func() { require.NoError(t, b.Close()) })
		})
		b, err := first.Connect(func(c *brokers.Config) { *c = cfg; c.URL = "mem://" })
		if err != nil {
			return nil, err
		}
		f := &faulty{Broker: b}
		if spoil != nil {
			spoil(f)
		}
		return f, nil
	}}
}
