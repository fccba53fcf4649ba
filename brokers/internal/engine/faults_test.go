package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
)

// rabbit is a broker like RabbitMQ 3.10 with quorum queues.
func rabbit() drivertest.Config {
	return drivertest.Config{
		Traits:       driver.Traits{Prompt: true, Early: true},
		Capabilities: brokers.Capabilities{Groups: true, DeliveryCount: true},
		Steps: driver.NewSteps(20*time.Millisecond, 50*time.Millisecond, 400*time.Millisecond, 2*time.Second,
			10*time.Second),
		CountNacks: true,
	}
}

// process is one process with a broker.
type process struct {
	*engine.Broker
	t    *testing.T
	conn *drivertest.Transport
	log  *bytes.Buffer
}

func open(t *testing.T, s *drivertest.Server, change ...func(*brokers.Config)) *process {
	t.Helper()
	conn := s.Connect()
	return openOver(t, conn, conn, change...)
}

// openOver opens a broker whose calls go through transport, which wraps conn.
func openOver(t *testing.T, conn *drivertest.Transport, transport driver.Transport, change ...func(*brokers.Config),
) *process {
	t.Helper()
	log := &bytes.Buffer{}
	cfg := brokers.Config{
		URL: "faulty://", Group: "billing", DrainTimeout: 5 * time.Second, Params: brokers.Params{"prefetch": "10"},
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	resolved, err := cfg.Resolve(params())
	require.NoError(t, err)
	p := &process{t: t, conn: conn, log: log}
	p.Broker, err = engine.New(engine.Config{Config: resolved, Params: params(), Transport: transport})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func concurrency(n int) func(*brokers.Config) { return func(c *brokers.Config) { c.Concurrency = n } }

func param(name, value string) func(*brokers.Config) {
	return func(c *brokers.Config) { c.Params[name] = value }
}

func (p *process) publish(ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		require.NoError(p.t, p.Publisher().Publish("orders", message.NewMessage(id, []byte(id))))
	}
}

func (p *process) subscribe() <-chan *message.Message {
	p.t.Helper()
	in, err := p.Subscriber().Subscribe(p.t.Context(), "orders")
	require.NoError(p.t, err)
	return in
}

// deliveries passes every message of a subscription to handle, each in a goroutine, until the channel closes.
type deliveries struct {
	mu    sync.Mutex
	runs  map[string][]time.Duration
	began time.Time
}

func (p *process) consume(handle func(m *message.Message)) *deliveries {
	p.t.Helper()
	d := &deliveries{runs: map[string][]time.Duration{}, began: time.Now()}
	in := p.subscribe()
	go func() {
		for m := range in {
			d.mu.Lock()
			d.runs[m.UUID] = append(d.runs[m.UUID], time.Since(d.began))
			d.mu.Unlock()
			go handle(m)
		}
	}()
	return d
}

func (d *deliveries) of(id string) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]time.Duration(nil), d.runs[id]...)
}

func (d *deliveries) total() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, runs := range d.runs {
		n += len(runs)
	}
	return n
}

func ack(m *message.Message) { m.Ack() }

// A message that the client cannot decode once ended 1,354 connections in 20 seconds, and each end was counted against
// the messages next to it.
func TestSession_ThatEndsAtOnceIsPacedAndRequestsOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		var windows []int
		s.With(func(h *drivertest.Hooks) {
			h.Receive = func(q driver.Queue) error { windows = append(windows, q.Window); return nil }
			h.Next = func(m *message.Message) error {
				if m.UUID == "undecodable" {
					return errors.New("table too deep")
				}
				return nil
			}
		})
		p := open(t, s)
		d := p.consume(ack)
		p.publish("undecodable")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.LessOrEqual(t, len(windows), 20, "sessions in a minute")
		require.Equal(t, []int{10, 10, 1}, windows[:3])
		require.Equal(t, 1, windows[len(windows)-1])

		s.With(func(h *drivertest.Hooks) { h.Next = nil })
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.Len(t, d.of("undecodable"), 1)
		require.LessOrEqual(t, strings.Count(p.log.String(), "\n"), 6, p.log.String())
	})
}

// Two ends in a row may be a broker that restarts: a consumer once took one message at a time from then on, for as long
// as its connection lasted.
func TestSession_TakesOneMessageAtATimeOnlyForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, concurrency(4))
		const n = 20
		handled := make(chan struct{}, n)
		d := p.consume(func(m *message.Message) {
			time.Sleep(30 * time.Second) // virtual
			m.Ack()
			handled <- struct{}{}
		})
		for range 2 {
			s.Cut()
			time.Sleep(500 * time.Millisecond) // virtual
			synctest.Wait()
		}
		published := time.Now()
		for i := range n {
			p.publish(strconv.Itoa(i))
		}
		time.Sleep(20 * time.Second) // virtual
		synctest.Wait()
		require.Equal(t, 1, d.total())
		for range n {
			<-handled
		}
		synctest.Wait()
		// The renewal is put off by a message that comes before the ack of the one before it is counted.
		require.LessOrEqual(t, time.Since(published), (n/4+4)*30*time.Second)
		require.Empty(t, s.Messages("orders", "billing"))
		require.Equal(t, n, d.total(), "each once")
		require.Zero(t, p.AcksFailed())
		require.Equal(t, 4, s.Calls("Receive"), "renewed once")
	})
}

func TestSession_ThatCannotBeOpenedIsPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(ack)
		synctest.Wait()
		s.With(func(h *drivertest.Hooks) { h.Receive = func(driver.Queue) error { return errors.New("refused") } })
		before := s.Calls("Receive")
		s.Cut()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.LessOrEqual(t, s.Calls("Receive")-before, 20)
		s.With(func(h *drivertest.Hooks) { h.Receive = nil })
		p.publish("later")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Len(t, d.of("later"), 1)
	})
}

// RabbitMQ closes a connection because of one of its channels, such as with an internal error after a queue was
// deleted. A service that started at that moment used to end.
func TestSession_FirstOneIsTriedTwice(t *testing.T) {
	var failures int
	fail := func() error {
		if failures--; failures >= 0 {
			return errors.New("the connection was closed")
		}
		return nil
	}
	for title, hooks := range map[string]struct {
		declare func() error
		receive func(driver.Queue) error
	}{
		"declare": {declare: fail},
		"receive": {declare: func() error { return nil }, receive: func(driver.Queue) error { return fail() }},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(rabbit())
				conn := s.Connect()
				p := openOver(t, conn, refusing{conn, hooks.declare})
				s.With(func(h *drivertest.Hooks) { h.Receive = hooks.receive })
				failures = 2
				_, err := p.Subscriber().Subscribe(t.Context(), "orders")
				require.ErrorContains(t, err, "the connection was closed")
				failures = 1
				d := p.consume(ack)
				p.publish("1")
				synctest.Wait()
				require.Len(t, d.of("1"), 1)
			})
		})
	}
}

// A server that restarts, or a cluster without a leader, answers for seconds with errors that pass: a service that
// started meanwhile used to end.
func TestSession_FirstOneWaitsForTheServer(t *testing.T) {
	errStarting := fmt.Errorf("%w: it is starting", driver.ErrTemporary)
	nothing := func(*process, message.Subscriber) {}
	closeBroker := func(p *process, _ message.Subscriber) { _ = p.Close() }
	closeOne := func(_ *process, in message.Subscriber) { _ = in.Close() }
	for title, test := range map[string]struct {
		lasts time.Duration
		hangs bool // after that
		err   error
		act   func(p *process, s message.Subscriber) // 5 s after the call of Subscribe
		fails bool
		took  time.Duration // at most
	}{
		"it starts": {lasts: 28 * time.Second, err: errStarting, act: nothing, took: 30 * time.Second},
		"it hangs": {
			lasts: 10 * time.Second, hangs: true, err: errStarting, act: nothing, fails: true, took: 30 * time.Second,
		},
		"it does not start":     {lasts: time.Hour, err: errStarting, act: nothing, fails: true, took: 30 * time.Second},
		"it refuses":            {lasts: time.Hour, err: errors.New("no"), act: nothing, fails: true, took: time.Second},
		"the broker closes":     {lasts: time.Hour, err: errStarting, act: closeBroker, fails: true, took: 5 * time.Second},
		"the subscriber closes": {lasts: time.Hour, err: errStarting, act: closeOne, fails: true, took: 5 * time.Second},
	} {
		for call, with := range map[string]struct{ declares, shares, initializes bool }{
			"Declare": {declares: true}, "Receive": {}, "SubscribeInitialize": {declares: true, initializes: true},
			"Join": {shares: true}, "Declare before Join": {declares: true, shares: true},
		} {
			t.Run(title+", "+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					var tries atomic.Int32
					pass := func() error { return nil }
					fail := func() error {
						if tries.Add(1); time.Since(began) < test.lasts {
							return test.err
						}
						if test.hangs {
							<-time.After(25 * time.Second)
						}
						return nil
					}
					cfg := rabbit()
					cfg.Traits.Prompt = !test.hangs
					s := drivertest.NewServer(cfg)
					conn := s.Connect()
					declare, open := pass, fail
					if with.declares {
						declare, open = fail, pass
					}
					s.With(func(h *drivertest.Hooks) { h.Receive = func(driver.Queue) error { return open() } })
					transport := driver.Transport(refusing{conn, declare})
					if with.shares {
						transport = sharing{transport, open}
					}
					p := openOver(t, conn, transport)
					in := p.Subscriber()
					time.AfterFunc(5*time.Second, func() { test.act(p, in) })
					var err error
					if with.initializes {
						err = in.(message.SubscribeInitializer).SubscribeInitialize("orders")
					} else {
						_, err = in.Subscribe(t.Context(), "orders")
					}
					require.LessOrEqual(t, time.Since(began), test.took)
					if test.fails {
						require.ErrorIs(t, err, test.err)
					} else {
						require.NoError(t, err)
					}
					require.LessOrEqual(t, tries.Load(), int32(10), "each may make RabbitMQ close the connection that consumers share")
					<-time.After(test.took) // the call that hangs ends
					synctest.Wait()
					logged := strings.Count(p.log.String(), "cannot consume yet, trying again")
					require.Equal(t, errors.Is(test.err, driver.ErrTemporary), logged == 1, p.log.String())
				})
			})
		}
	}
}

// A stream that is opened after the subscription has given up is closed, otherwise the broker would send it messages.
func TestSession_ThatIsOpenedTooLateIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Traits.Prompt = false
		s := drivertest.NewServer(cfg)
		p := open(t, s)
		d := p.consume(ack)
		synctest.Wait()
		var received atomic.Int32
		s.With(func(h *drivertest.Hooks) {
			h.Receive = func(driver.Queue) error {
				if received.Add(1) <= 2 {
					time.Sleep(45 * time.Second) // virtual
				}
				return nil
			}
		})
		s.Cut()
		time.Sleep(3 * time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 1, s.Sessions())
		p.publish("later")
		synctest.Wait()
		require.Len(t, d.of("later"), 1)
	})
}

func TestNack_PauseDoublesInPlaceAndSurvivesARedelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, param("nack-pause", "1s"))
		d := p.consume(func(m *message.Message) {
			m.Payload[0] = 'X' // a handler's change to its message must not reach the next delivery
			m.Metadata.Set("touched", "yes")
			m.Nack()
		})
		p.publish("bad")
		time.Sleep(10 * time.Second) // 0, 1, 3, 7
		synctest.Wait()
		require.Equal(t, []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second}, d.of("bad"))
		s.Cut() // the next is due at 15
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.Len(t, d.of("bad"), 4, "a lost connection does not end the pause")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Len(t, d.of("bad"), 5)
		require.Equal(t, 15*time.Second, d.of("bad")[4])
		time.Sleep(14 * time.Second)
		synctest.Wait()
		require.Len(t, d.of("bad"), 5, "the pause continues to grow")
		require.Equal(t, "bad", string(s.Messages("orders", "billing")[0].Payload))
		require.Equal(t, 0, strings.Count(p.log.String(), "crash"), p.log.String())
	})
}

// A nacked message must not use up the prefetch of others while it pauses.
func TestNack_DoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, param("nack-pause", "1m"))
		d := p.consume(func(m *message.Message) {
			if m.UUID == "bad" {
				m.Nack()
				return
			}
			m.Ack()
		})
		p.publish("bad", "good")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, d.of("good"), 1)
	})
}

// Any producer can write the header, so only the engine's own counts.
func TestNotBefore_OfAProducerIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		var seen message.Metadata
		d := p.consume(func(m *message.Message) { seen = m.Metadata; m.Ack() })
		forged := message.NewMessage("forged", nil)
		forged.Metadata.Set(envelope.KeyNotBefore, strconv.FormatInt(time.Now().Add(30*24*time.Hour).UnixMilli(), 10))
		require.NoError(t, p.Publisher().Publish("orders", forged))
		foreign := driver.Outgoing{Message: forged.Copy(), To: &driver.Destination{Topic: "orders"}}
		foreign.Message.UUID = "foreign"
		require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{foreign})...))
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, d.of("forged"), 1)
		require.Len(t, d.of("foreign"), 1)
		require.NotContains(t, seen, envelope.KeyNotBefore)
		require.Contains(t, forged.Metadata, envelope.KeyNotBefore, "the caller's message is unchanged")
	})
}

// After an alarm of 90 seconds, 15 of 15 healthy messages used to be dead-lettered as crash, and with prefetch 1
// nothing was consumed.
func TestAlarm_WaitingMessagesAreHeldAndRunWhenDue(t *testing.T) {
	for _, prefetch := range []string{"1", "10"} {
		t.Run("prefetch "+prefetch, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(rabbit())
				p := open(t, s, param("prefetch", prefetch))
				d := p.consume(ack)
				const n = 15
				for i := range n {
					m := message.NewMessage(fmt.Sprint("delayed ", i), nil)
					envelope.SetDelay(m, 35*time.Second) // with steps of 10 s, delivered early three times
					require.NoError(t, p.Publisher().Publish("orders", m))
				}
				short := message.NewMessage("short", nil)
				envelope.SetDelay(short, 13*time.Second) // delivered early together with the others
				require.NoError(t, p.Publisher().Publish("orders", short))
				time.Sleep(5 * time.Second)
				synctest.Wait()
				s.PausePublishing()
				time.Sleep(90 * time.Second)
				synctest.Wait()
				require.Equal(t, []time.Duration{13 * time.Second}, d.of("short"), "others are consumed")
				for i := range n {
					require.Equal(t, []time.Duration{35 * time.Second}, d.of(fmt.Sprint("delayed ", i)), i)
				}
				s.ResumePublishing()
				p.publish("after")
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, n+2, d.total())
				require.Empty(t, s.Dead("orders.billing_dlq"))
				require.LessOrEqual(t, strings.Count(p.log.String(), "\n"), 10, p.log.String())
			})
		})
	}
}

// A message that can be neither retried nor dead-lettered blocks nothing behind it, whatever the prefetch.
func TestNack_OfUnsettleableMessagesBlocksNothing(t *testing.T) {
	for _, prefetch := range []string{"1", "10"} {
		t.Run("prefetch "+prefetch, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(rabbit())
				p := open(t, s, param("prefetch", prefetch))
				var mended atomic.Bool
				d := p.consume(func(m *message.Message) {
					if strings.HasPrefix(m.UUID, "stuck") && !mended.Load() {
						m.Nack()
						return
					}
					m.Ack()
				})
				p.publish("stuck 1", "stuck 2", "good 1", "good 2", "good 3")
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for _, id := range []string{"good 1", "good 2", "good 3"} {
					require.Len(t, d.of(id), 1, id)
				}
				mended.Store(true)
				time.Sleep(time.Minute)
				synctest.Wait()
				runs := d.total()
				p.publish("after")
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, runs+1, d.total(), "the stuck messages are settled, and the whole window is free again")
				require.Empty(t, s.Dead("orders.billing_dlq"))
			})
		})
	}
}

func TestPublish_AndCloseEndWithinTheTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		prompt  bool
		verdict drivertest.Verdict
		batch   int
	}{
		"a transport that respects its context":            {true, drivertest.Verdict{Hang: true}, 0},
		"the same, in batches":                             {true, drivertest.Verdict{Hang: true}, 100},
		"one that ignores it":                              {false, drivertest.Verdict{Stuck: true}, 0},
		"one that ignores it, in batches":                  {false, drivertest.Verdict{Stuck: true}, 100},
		"one that stores the message and answers too late": {true, drivertest.Verdict{Copies: 1, Late: time.Minute}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := rabbit()
				cfg.Traits.Prompt, cfg.Traits.PublishBatch = c.prompt, c.batch
				s := drivertest.NewServer(cfg)
				p := open(t, s)
				p.consume(ack)
				s.With(func(h *drivertest.Hooks) { h.Publish = func(*driver.Outgoing) drivertest.Verdict { return c.verdict } })
				began := time.Now()
				var callers sync.WaitGroup
				for range 20 {
					callers.Go(func() {
						err := p.Publisher().Publish("orders", message.NewMessage("1", nil))
						if !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("unexpected answer: %v", err)
						}
						if d := time.Since(began); d > 10*time.Second {
							t.Errorf("the answer came after %s", d)
						}
					})
				}
				time.Sleep(time.Second)
				synctest.Wait()
				require.NoError(t, p.Close())
				require.LessOrEqual(t, time.Since(began), 16*time.Second)
				callers.Wait()
				s.Release()
			})
		})
	}
}

// A message whose handler succeeded but whose ack was lost used to be redelivered and handled again.
func TestAck_ThatIsLostAfterSuccessDoesNotRunTheHandlerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(func(m *message.Message) {
			s.Cut()
			time.Sleep(10 * time.Second) // the broker has redelivered it meanwhile
			m.Ack()
		})
		p.publish("order")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of("order"), 1)
		require.Equal(t, uint64(1), p.AcksFailed())
		require.Equal(t, uint64(1), p.Replays())
		require.Empty(t, s.Messages("orders", "billing"))

		other := message.NewMessage("order", []byte("another payload"))
		require.NoError(t, p.Publisher().Publish("orders", other))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of("order"), 2, "a different message with the same id is not treated as the same")
	})
}

// A crash replays the topic, and each replay of a failed delivery used to start another chain of retries.
func TestReplay_OfADeliveryWhoseRetryWasPublishedStartsNoSecondChain(t *testing.T) {
	for name, cfg := range map[string]drivertest.Config{
		"stamped by the publisher": rabbit(),
		"by its position": {
			Traits:       driver.Traits{Prompt: true, NackPause: true, StablePosition: true},
			Capabilities: brokers.Capabilities{Groups: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(cfg)
				p := open(t, s)
				attempts := map[string]int{}
				var mu sync.Mutex
				p.consume(func(m *message.Message) {
					mu.Lock()
					retry := m.Metadata.Get(envelope.KeyRetryCount)
					attempts[retry]++
					mu.Unlock()
					origin, _ := envelope.OriginFrom(m.Context())
					n, _ := strconv.Atoi(retry)
					if n < 3 {
						next := m.Copy()
						next.Metadata.Set(envelope.KeyRetryCount, strconv.Itoa(n+1))
						if err := p.Reschedule(context.WithoutCancel(m.Context()), *origin, next, 5*time.Second); err != nil {
							t.Error(err)
						}
					}
					m.Ack()
				})
				p.publish("order")
				time.Sleep(time.Second)
				synctest.Wait()
				s.Replay("orders", "billing")
				s.Replay("orders", "billing")
				time.Sleep(time.Minute)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, 1, attempts["1"], "%v", attempts)
				require.Equal(t, 1, attempts["2"])
				require.Equal(t, 1, attempts["3"])
			})
		})
	}
}

// The rest of a delay was stored but not confirmed, so its message was handled when it was due, and again when the copy
// arrived while the handler still had it. The same happened to a retry that was stored twice.
func TestReplay_DuringTheHandlerWaits(t *testing.T) {
	for name, c := range map[string]struct {
		delay   time.Duration // of the first delivery
		verdict drivertest.Verdict
		runs    int
	}{
		"the rest of a delay": {15 * time.Second, drivertest.Verdict{Copies: 1, Hang: true}, 1},
		"a retry":             {0, drivertest.Verdict{Copies: 2}, 2},
	} {
		for _, workers := range []int{1, 2} {
			t.Run(fmt.Sprint(name, ", workers ", workers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := drivertest.NewServer(rabbit())
					var once atomic.Bool
					s.With(func(h *drivertest.Hooks) {
						h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
							if o.To.Kind == driver.ToConsumer && !once.Swap(true) {
								return c.verdict
							}
							return drivertest.Verdict{Copies: 1}
						}
					})
					p := open(t, s, concurrency(workers))
					d := p.consume(func(m *message.Message) {
						if m.Metadata.Get(envelope.KeyRetryCount) == "" && c.runs > 1 {
							next := m.Copy()
							next.Metadata.Set(envelope.KeyRetryCount, "1")
							origin, _ := envelope.OriginFrom(m.Context())
							if err := p.Reschedule(context.WithoutCancel(m.Context()), *origin, next, 5*time.Second); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(time.Minute)
						m.Ack()
					})
					m := message.NewMessage("order", nil)
					envelope.SetDelay(m, c.delay)
					require.NoError(t, p.Publisher().Publish("orders", m))
					time.Sleep(time.Hour)
					synctest.Wait()
					require.Len(t, d.of("order"), c.runs)
					require.Equal(t, uint64(1), p.Replays())
					require.Empty(t, s.Messages("orders", "billing"))
				})
			})
		}
	}
}

// A foreign service that passes on all headers of an order to the lines that it publishes also copies our stage. The
// lines are other messages, even while copies of the order are looked for.
func TestReplay_ForeignMessagesWithACopiedStageAreHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		var stage atomic.Value
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
				stage.CompareAndSwap(nil, o.Metadata()[envelope.KeyStage])
				return drivertest.Verdict{Copies: 1, Hang: o.To.Kind == driver.ToConsumer}
			}
		})
		p := open(t, s)
		d := p.consume(ack)
		order := message.NewMessage("order", nil)
		envelope.SetDelay(order, 15*time.Second) // the rest of the delay is stored, but not confirmed
		require.NoError(t, p.Publisher().Publish("orders", order))
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		require.Equal(t, uint64(1), p.Replays())
		for _, id := range []string{"line 1", "line 2", "line 3"} {
			line := message.NewMessage(id, []byte(id))
			line.Metadata.Set(envelope.KeyStage, stage.Load().(string))
			o := driver.Outgoing{Message: line, To: &driver.Destination{Topic: "orders"}}
			require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{o})...))
		}
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		for _, id := range []string{"order", "line 1", "line 2", "line 3"} {
			require.Len(t, d.of(id), 1, id)
		}
	})
}

// A foreign service that passes on the headers of a message, or all of its properties, makes other messages of which
// every one bears the same stage: its own, or after a failure the same next one. Only the first of them used to be
// handled.
func TestReplay_ForeignMessagesOfOneStageAreHandled(t *testing.T) {
	for name, retry := range map[string]bool{"copied from a retry": true, "copied from a first publication": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(rabbit())
				var stages sync.Map
				s.With(func(h *drivertest.Hooks) {
					h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
						if stage := o.Metadata()[envelope.KeyStage]; stage != "" {
							stages.LoadOrStore(o.To.Kind != driver.ToTopic, stage)
						}
						return drivertest.Verdict{Copies: 1}
					}
				})
				p := open(t, s)
				var done sync.Map
				d := p.consume(func(m *message.Message) {
					if m.Metadata.Get(envelope.KeyRetryCount) == "" {
						rescheduleFailed(t, p, m, "boom")
					} else {
						time.Sleep(time.Minute) // virtual; the others arrive during the first
						done.Store(m.UUID+" "+string(m.Payload), true)
					}
					m.Ack()
				})
				p.publish("order")
				time.Sleep(time.Hour) // virtual
				synctest.Wait()
				require.Len(t, d.of("order"), 2)
				lines := []struct{ id, payload string }{
					{"order", "line 1"}, {"order", "line 2"}, {"line 3", "order"}, {"line 4", "order"}, {"", "line 5"}, {"", "line 6"},
				}
				copied, _ := stages.Load(retry)
				for _, l := range lines {
					line := message.NewMessage(l.id, []byte(l.payload))
					line.Metadata.Set(envelope.KeyStage, copied.(string))
					to := driver.Destination{Topic: "orders"}
					if retry { // on a broker that cannot tell it from ours
						to.Kind, to.Consumer = driver.ToConsumer, "billing"
					}
					o := driver.Outgoing{Message: line, To: &to}
					require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{o})...))
				}
				time.Sleep(time.Hour) // virtual
				synctest.Wait()
				for _, l := range lines {
					_, ok := done.Load(l.id + " " + l.payload)
					require.True(t, ok, l)
				}
				require.Zero(t, p.Replays())
			})
		})
	}
}

// rescheduleFailed is what a pipeline does with a failed message.
func rescheduleFailed(t *testing.T, p *process, m *message.Message, failure string) {
	t.Helper()
	origin, _ := envelope.OriginFrom(m.Context())
	next := envelope.RecordFailure(m, envelope.Failure{Err: envelope.Error{Message: failure}, Retry: 1})
	if err := p.Reschedule(context.WithoutCancel(m.Context()), *origin, next, 5*time.Second); err != nil {
		t.Error(err)
	}
}

// Two retries of one delivery differ in their structured bodies, which have the error.
func TestReplay_OfAStructuredBodyStartsNoSecondChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		var runs, retries atomic.Int32
		p.consume(func(m *message.Message) {
			if e, _ := envelope.FromMessage(m); e.RetryCount() == 0 {
				rescheduleFailed(t, p, m, fmt.Sprint("boom ", runs.Add(1)))
			} else {
				retries.Add(1)
			}
			m.Ack()
		})
		e, err := envelope.New("shop", "orders", "an order", nil, envelope.InMode(envelope.Structured))
		require.NoError(t, err)
		require.NoError(t, p.Publisher().Publish("orders", e.Message()))
		for range 2 {
			time.Sleep(time.Second) // virtual
			synctest.Wait()
			s.Replay("orders", "billing")
		}
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, int32(3), runs.Load())
		require.Equal(t, int32(1), retries.Load())
	})
}

// A handler may reschedule its message twice; the copies are not replays.
func TestReschedule_TwiceOfOneDeliveryMakesTwoMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(func(m *message.Message) {
			if m.Metadata.Get("fork") == "" {
				origin, _ := envelope.OriginFrom(m.Context())
				for _, fork := range []string{"a", "b"} {
					next := m.Copy()
					next.Metadata.Set("fork", fork)
					if err := p.Reschedule(m.Context(), *origin, next, time.Second); err != nil {
						t.Error(err)
					}
				}
			}
			m.Ack()
		})
		p.publish("order")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of("order"), 3)
	})
}

func TestDeletedQueues_AreDeclaredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(ack)
		p.publish("first")
		synctest.Wait()
		s.Delete("orders", "billing")
		time.Sleep(time.Second)
		synctest.Wait()
		p.publish("second")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, d.of("second"), 1)
	})
}

// refusing is a transport that declares nothing while there is a reason.
type refusing struct {
	*drivertest.Transport
	why func() error
}

func (r refusing) Declare(ctx context.Context, q driver.Queue) error {
	if err := r.why(); err != nil {
		return err
	}
	return r.Transport.Declare(ctx, q)
}

// Opening a broker waits for the server of its Delays, but ends with its context.
func TestDelays_OpeningEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := drivertest.NewServer(rabbit())
		server.With(func(h *drivertest.Hooks) { h.Receive = func(driver.Queue) error { return driver.ErrTemporary } })
		delays := open(t, server)
		resolved, err := brokers.Config{URL: "faulty://", Group: "billing"}.Resolve(params())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		_, err = engine.New(engine.Config{
			Config: resolved, Params: params(), Transport: server.Connect(), Delays: delays, Context: ctx,
		})
		require.ErrorIs(t, err, driver.ErrTemporary)
		require.Equal(t, 5*time.Second, time.Since(began))

		server.With(func(h *drivertest.Hooks) { h.Receive = nil })
		ctx, cancel = context.WithCancel(t.Context())
		b, err := engine.New(engine.Config{
			Config: resolved, Params: params(), Transport: server.Connect(), Delays: delays, Context: ctx,
		})
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		require.Equal(t, 1, server.Sessions(), "it reads what is due all the same")
		require.NoError(t, b.Close())
	})
}

// sharing is a transport with a queue of one part, which no member gets.
type sharing struct {
	driver.Transport
	join func() error
}

func (s sharing) Join(context.Context, driver.Queue, driver.Begin) (func(), error) {
	return func() {}, s.join()
}

// A queue that others have recreated is read if it only differs from what would be declared. One that is refused for
// another reason, because it would lose messages, is not.
func TestDeletedQueues_RecreatedByOthers(t *testing.T) {
	errLoses := errors.New("it would lose messages")
	for why, read := range map[error]int{fmt.Errorf("arguments: %w", driver.ErrDiffers): 1, errLoses: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := drivertest.NewServer(rabbit())
			var refused error
			conn := s.Connect()
			p := openOver(t, conn, refusing{conn, func() error { return refused }})
			d := p.consume(ack)
			synctest.Wait()
			refused = why
			s.Delete("orders", "billing")
			other := open(t, s)
			require.NoError(t, other.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
			other.publish("order")
			<-time.After(time.Minute)
			synctest.Wait()
			require.Len(t, d.of("order"), read, why)
			require.Contains(t, p.log.String(), why.Error())
		})
	}
}

func TestTooLarge_DropsTheTextsOfItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Limit = 2000
		s := drivertest.NewServer(cfg)
		p := open(t, s)
		origin := envelope.Origin{Topic: "orders", Consumer: "billing"}
		letter := func(payload int) *envelope.DeadLetter {
			m := message.NewMessage("large", make([]byte, payload))
			for _, key := range []string{envelope.KeyErrorTrace, envelope.KeyErrorMessage, envelope.KeyErrorClass} {
				m.Metadata.Set(key, strings.Repeat("x", 500))
			}
			return &envelope.DeadLetter{Message: m, Origin: origin}
		}
		for payload, left := range map[int][]string{
			0:    {envelope.KeyErrorTrace, envelope.KeyErrorMessage, envelope.KeyErrorClass},
			700:  {envelope.KeyErrorMessage, envelope.KeyErrorClass},
			1200: {envelope.KeyErrorClass},
			1700: {},
		} {
			d := letter(payload)
			require.NoError(t, p.DeadLetter(t.Context(), d), payload)
			stored := s.Take("orders.billing_dlq", 1)[0]
			var have []string
			for _, key := range []string{envelope.KeyErrorTrace, envelope.KeyErrorMessage, envelope.KeyErrorClass} {
				if stored.Metadata.Get(key) != "" {
					have = append(have, key)
				}
			}
			require.ElementsMatch(t, left, have, payload)
			require.NotEmpty(t, d.Message.Metadata.Get(envelope.KeyErrorTrace), "the caller's letter is unchanged")
		}
		require.ErrorIs(t, p.DeadLetter(t.Context(), letter(2100)), brokers.ErrTooLarge)
		require.ErrorIs(t, p.Reschedule(t.Context(), origin, letter(2100).Message, 0), brokers.ErrTooLarge)
	})
}

// Headers of another producer that fill all the room for headers move behind the payload, in retries and dead letters,
// and return with the delivery.
func TestTooLarge_HeadersMoveBehindThePayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Capabilities.MaxHeaderBytes = 1000
		s := drivertest.NewServer(cfg)
		p := open(t, s)
		note := strings.Repeat("n", 1000) + "\xff"
		dead := make(chan struct{})
		d := p.consume(func(m *message.Message) {
			origin, _ := envelope.OriginFrom(m.Context())
			var err error
			if m.Metadata.Get(envelope.KeyRetryCount) == "" {
				next := m.Copy()
				next.Metadata.Set("note", note)
				for i := range 10 {
					next.Metadata.Set(fmt.Sprint("amqp-", i), note[:200])
				}
				next.Metadata.Set(envelope.KeyRetryCount, "1")
				err = p.Reschedule(m.Context(), *origin, next, time.Second)
			} else {
				require.Equal(t, note, m.Metadata.Get("note"))
				require.Equal(t, "payload", string(m.Payload))
				err = p.DeadLetter(m.Context(), &envelope.DeadLetter{Message: m, Origin: *origin})
			}
			require.NoError(t, err)
			m.Ack()
			if m.Metadata.Get(envelope.KeyRetryCount) != "" {
				close(dead)
			}
		})
		p.publish("payload")
		<-dead
		require.Len(t, d.of("payload"), 2)
		stored := s.Take("orders.billing_dlq", 1)[0]
		require.Equal(t, "7", stored.Metadata.Get(envelope.KeyEnclosed))
		require.Equal(t, "1", stored.Metadata.Get(envelope.KeyRetryCount))
		require.NotContains(t, stored.Metadata, "note")
		require.NotContains(t, stored.Metadata, "amqp-0", "no property has this name")
		require.True(t, strings.HasPrefix(string(stored.Payload), "payload[["))
	})
}

// A producer that writes such a message itself restores only what the engine would have moved: neither its state nor
// the counter of attempts, nor another list.
func TestTooLarge_ForgedHeadersBehindThePayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		handled := make(chan message.Metadata, 10)
		p.consume(func(m *message.Message) {
			defer m.Ack()
			n, _ := strconv.Atoi(m.Metadata.Get(envelope.KeyRetryCount))
			handled <- m.Copy().Metadata
			if n == 3 {
				close(handled)
				return
			}
			origin, _ := envelope.OriginFrom(m.Context())
			again := m.Copy()
			again.Metadata.Set(envelope.KeyRetryCount, strconv.Itoa(n+1))
			if err := p.Reschedule(m.Context(), *origin, again, time.Second); err != nil {
				t.Error(err)
			}
		})
		forged, length := message.NewMessage("forged", []byte("payload")), ""
		for range 5 {
			headers := [][2][]byte{
				{[]byte("note"), []byte("n")},
				{[]byte(envelope.KeyRetryCount), []byte("0")},
				{[]byte(envelope.KeyRetryCount), bytes.Repeat([]byte("0"), 300)},

				{[]byte(envelope.KeyStage), bytes.Repeat([]byte("r"), 300)},
				{[]byte(envelope.KeySuspect), []byte("1")},
				{[]byte(envelope.KeyDelay), []byte("1000")},
				{[]byte(envelope.KeyEnclosed), []byte(length)},
			}
			list, err := json.Marshal(headers)
			require.NoError(t, err)
			length = strconv.Itoa(len(forged.Payload))
			forged.Payload = append(forged.Payload, list...)
		}
		forged.Metadata.Set(envelope.KeyEnclosed, length)
		o := driver.Outgoing{Message: forged, To: &driver.Destination{Topic: "orders"}}
		require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{o})...))
		n := 0
		for md := range handled {
			want := message.Metadata{"note": "n"}
			if n > 0 {
				want.Set(envelope.KeyRetryCount, strconv.Itoa(n))
			}
			require.Equal(t, want, md)
			n++
		}
	})
}

// Every published message can be retried: our own headers do not count against the limit.
func TestTooLarge_TheLargestMessageCanBeRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Capabilities.MaxMessageBytes, cfg.Limit = 1000, 1000+driver.Headroom
		s := drivertest.NewServer(cfg)
		p := open(t, s)
		d := p.consume(func(m *message.Message) {
			if m.Metadata.Get(envelope.KeyErrorMessage) == "" {
				origin, _ := envelope.OriginFrom(m.Context())
				m.Metadata.Set(envelope.KeyErrorMessage, strings.Repeat("x", 1024))
				if err := p.Reschedule(m.Context(), *origin, m.Copy(), time.Second); err != nil {
					t.Error(err)
				}
			}
			m.Ack()
		})
		fits := func(n int) error {
			return p.Publisher().Publish("orders", message.NewMessage("large", make([]byte, n)))
		}
		n := 1000
		for fits(n) != nil {
			n--
		}
		require.Greater(t, n, 950)
		require.ErrorIs(t, fits(n+1), brokers.ErrTooLarge)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of("large"), 2)
	})
}

func TestEvent_WithoutASubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		bus := func(c *brokers.Config) { c.Naming = brokers.ServiceBus("shop") }
		event := message.NewMessage("1", nil)
		require.NoError(t, open(t, s, bus).Publisher().Publish("order.paid", event), "on a bus this is not an error")
		strict := open(t, s, bus, func(c *brokers.Config) { c.RefuseUnrouted = true })
		require.ErrorIs(t, strict.Publisher().Publish("order.paid", event), brokers.ErrUnroutable)
		require.ErrorIs(t, open(t, s).Publisher().Publish("order.paid", event), brokers.ErrUnroutable,
			"without patterns the broker decides")
	})
}

// 500 publications that fail for the same reason are reported as one error.
func TestPublish_OneCauseIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict { return drivertest.Verdict{Err: errors.New("memory alarm")} }
		})
		err := open(t, s).Publisher().Publish("orders", make500()...)
		require.EqualError(t, err, "faulty: publish to orders: memory alarm (and 499 more of the 500 messages)")
	})
}

func make500() []*message.Message {
	list := make([]*message.Message, 500)
	for i := range list {
		list[i] = message.NewMessage(strconv.Itoa(i), nil)
	}
	return list
}

func TestSubscribe_RefusesSharedQueues(t *testing.T) {
	type read struct {
		topic string
		opts  []brokers.SubscriberOption
	}
	group := func(name string) []brokers.SubscriberOption {
		return []brokers.SubscriberOption{brokers.WithGroup(name)}
	}
	for name, c := range map[string]struct {
		naming      brokers.NameScheme
		group       string
		first, next read
		fault       string
	}{
		"two patterns of one service": {
			brokers.ServiceBus("shop"), "billing",
			read{"invoice.*", nil},
			read{"user.#", nil},
			`queue "shop.billing" is read for invoice.* already`,
		},
		"the same pattern twice": {brokers.ServiceBus("shop"), "billing", read{"invoice.*", nil}, read{"invoice.*", nil}, ""},
		"two services": {
			brokers.ServiceBus("shop"), "billing",
			read{"invoice.*", nil},
			read{"user.#", group("mail")},
			"",
		},
		"two groups, a naming without them": {
			brokers.Laravel(), "",
			read{"orders", group("billing")},
			read{"orders", group("mail")},
			"no {group} in the queue's name",
		},
		"two groups": {brokers.NameScheme{}, "", read{"orders", group("billing")}, read{"orders", group("mail")}, ""},
		"no group twice": {
			brokers.NameScheme{}, "", read{"orders", nil}, read{"orders", nil}, "give each handler a group",
		},
		"one group twice": {brokers.NameScheme{}, "", read{"orders", group("mail")}, read{"orders", group("mail")}, ""},
		"two topics whose queues have one name": {
			brokers.NameScheme{},
			"",
			read{"orders", group("mail")},
			read{"orders.mail", nil},
			`queue "orders.mail" is read for orders already`,
		},
		"a pattern where there are none": {
			brokers.NameScheme{}, "billing", read{"orders", nil}, read{"orders.*", group("mail")}, `"orders.*" is a pattern`,
		},
		"more patterns where there are none": {
			brokers.NameScheme{},
			"billing",
			read{"orders", nil},
			read{"users", []brokers.SubscriberOption{brokers.WithPatterns("a")}},
			"WithPatterns",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := rabbit()
				cfg.Capabilities.Patterns = c.naming.Patterns
				p := open(t, drivertest.NewServer(cfg), func(b *brokers.Config) { b.Naming, b.Group = c.naming, c.group })
				first := p.Subscriber(c.first.opts...)
				_, err := first.Subscribe(t.Context(), c.first.topic)
				require.NoError(t, err)
				_, err = p.Subscriber(c.next.opts...).Subscribe(t.Context(), c.next.topic)
				if c.fault == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorContains(t, err, c.fault)
				require.ErrorIs(t, err, brokers.ErrUnsupported)
				require.NoError(t, first.Close())
				_, err = p.Subscriber(c.next.opts...).Subscribe(t.Context(), c.next.topic)
				if !strings.Contains(strings.ToLower(c.fault), "pattern") {
					require.NoError(t, err, "once the first has ended")
				}
			})
		})
	}
}

// A broker that cannot delay stores delayed messages in another broker, which returns them to the right consumer.
func TestDelays_InAnotherBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Capabilities.MaxDelay, cfg.Traits.Early = -1, false
		cfg.Capabilities.MaxHeaderBytes = 1000
		s := drivertest.NewServer(cfg)
		resolved, err := brokers.Config{URL: "faulty://", Group: "billing"}.Resolve(params())
		require.NoError(t, err)
		origin := envelope.Origin{Topic: "orders", Consumer: "billing"}
		refusing, err := engine.New(engine.Config{Config: resolved, Params: params(), Transport: s.Connect()})
		require.NoError(t, err)
		require.ErrorIs(t, refusing.Reschedule(t.Context(), origin, message.NewMessage("1", nil), time.Second),
			brokers.ErrUnsupported)
		require.NoError(t, refusing.Close())

		delays, err := memory.New(brokers.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, delays.Close()) })
		b, err := engine.New(engine.Config{Config: resolved, Params: params(), Transport: s.Connect(), Delays: delays})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		require.Equal(t, delays.Capabilities().MaxDelay, b.Capabilities().MaxDelay)
		mine, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		others, err := b.Subscriber(brokers.WithGroup("mail")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)

		began := time.Now()
		retry := message.NewMessage("retry", []byte("payload"))
		note := strings.Repeat("as it is", 200) // moves behind the payload, which the other broker must not see
		retry.Metadata.Set("kept", note)
		require.NoError(t, b.Reschedule(t.Context(), origin, retry, time.Minute))
		m := <-mine
		require.Equal(t, time.Minute, time.Since(began))
		require.Equal(t, message.Metadata{"kept": note}, m.Metadata)
		require.Equal(t, "payload", string(m.Payload))
		m.Ack()

		// If the transport is down when a message is due, the message is delivered once the transport is up again.
		first := message.NewMessage("first", nil)
		envelope.SetDelay(first, time.Minute)
		require.NoError(t, b.Publisher().Publish("orders", first))
		s.PausePublishing()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		s.ResumePublishing()
		for _, in := range []<-chan *message.Message{mine, others} {
			m := <-in
			require.Equal(t, "first", m.UUID)
			require.Equal(t, "60000", m.Metadata.Get(envelope.KeyOriginalDelay))
			m.Ack()
		}
		synctest.Wait() // so that the other broker has acked, which it does after the publication
		require.Equal(t, memory.Depth{}, delays.Depth(engine.DefaultDelaysTopic, "redrive"))
	})
}
