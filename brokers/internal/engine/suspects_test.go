package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/redrive-go/redrive/envelope"
)

// crashes runs a service that is restarted whenever a message kills its process.
type crashes struct {
	t          *testing.T
	s          *drivertest.Server
	kills      func(m *message.Message) bool
	change     []func(*brokers.Config)
	narrowings narrowings

	mu      sync.Mutex
	runs    map[string]int
	handled map[string]int
	starts  int
	alive   *process
	over    chan struct{}
}

func newCrashes(t *testing.T, s *drivertest.Server, kills func(m *message.Message) bool,
	change ...func(*brokers.Config),
) *crashes {
	t.Helper()
	c := &crashes{
		t: t, s: s, kills: kills, change: change, runs: map[string]int{}, handled: map[string]int{},
		over: make(chan struct{}),
	}
	t.Cleanup(func() { close(c.over) }) // before the brokers are closed, which waits for their handlers
	return c
}

// start starts a process, which dies at the first message that kills it.
func (c *crashes) start() {
	conn := c.s.Connect()
	p := openOver(c.t, conn, c.narrowings.over(conn), c.change...)
	c.narrowings.set("")
	c.mu.Lock()
	c.starts++
	c.alive = p
	c.mu.Unlock()
	in := p.subscribe()
	go func() {
		for m := range in {
			go c.handle(p, m)
		}
	}()
}

func (c *crashes) handle(p *process, m *message.Message) {
	c.mu.Lock()
	if c.alive != p { // dead
		c.mu.Unlock()
		<-c.over
		m.Nack()
		return
	}
	c.runs[m.UUID]++
	c.narrowings.handled(m.UUID)
	if c.kills(m) {
		p.conn.Kill()
		c.alive = nil
		c.mu.Unlock()
		time.Sleep(5 * time.Second) // virtual: messages accumulate until it is restarted
		c.start()
		<-c.over
		m.Nack()
		return
	}
	c.mu.Unlock()
	time.Sleep(20 * time.Millisecond) // virtual
	c.mu.Lock()
	if c.alive == p {
		c.handled[m.UUID]++
		m.Ack()
	}
	c.mu.Unlock()
}

// narrowings counts how often a window is narrowed while a suspect that was published to run is on its way or runs.
// RabbitMQ may return such a message, and counts that.
type narrowings struct {
	mu     sync.Mutex
	toRun  string // its id
	early  int
	beyond []int // by how much each new window exceeds the one that its session was opened with
	slow   time.Duration
}

func (n *narrowings) set(toRun string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.toRun = toRun
}

// handled is called when the handler of a message has begun, and when it was not published.
func (n *narrowings) handled(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.toRun == id {
		n.toRun = ""
	}
}

// over is a transport that reports to n.
func (n *narrowings) over(conn *drivertest.Transport) driver.Transport { return narrowing{conn, n} }

type narrowing struct {
	*drivertest.Transport

	n *narrowings
}

func (t narrowing) Publish(ctx context.Context, out []driver.Outgoing) []error {
	for i := range out {
		for _, extra := range out[i].Extra {
			if extra.Key == envelope.KeySuspect && strings.HasSuffix(extra.Value, "!") {
				t.n.set(out[i].Message.UUID)
			}
		}
	}
	faults := t.Transport.Publish(ctx, out)
	for i, err := range faults {
		if err != nil {
			t.n.handled(out[i].Message.UUID)
		}
	}
	return faults
}

func (t narrowing) Receive(ctx context.Context, q driver.Queue) (driver.Stream, error) {
	s, err := t.Transport.Receive(ctx, q)
	if _, exact := s.(driver.Beginner); err != nil || exact {
		return s, err
	}
	return &narrowingStream{
		Stream: s, Watcher: s.(driver.Watcher), widener: s.(driver.Widener), window: q.Window, n: t.n,
	}, nil
}

type narrowingStream struct {
	driver.Stream
	driver.Watcher

	widener driver.Widener
	window  int
	n       *narrowings
}

func (s *narrowingStream) Widen(ctx context.Context, window int) error {
	s.n.mu.Lock()
	s.n.beyond = append(s.n.beyond, window-s.window)
	if window <= s.window && s.n.toRun != "" {
		s.n.early++
	}
	s.n.mu.Unlock()
	if window <= s.window {
		time.Sleep(s.n.slow) // virtual
	}
	return s.widener.Widen(ctx, window)
}

// Only messages that kill their process are dead-lettered, after as many runs as the crash limit allows; those
// prefetched with them are handled, even while the suspects have their turns.
func TestSuspects_OnlyTheKillerIsDead(t *testing.T) {
	exact := drivertest.Config{
		Traits: driver.Traits{
			Prompt: true, NackPause: true, StablePosition: true, SettleBatch: 50,
			SettleLinger: 5 * time.Millisecond,
		},
		Capabilities: brokers.Capabilities{Groups: true, DeliveryCount: true},
		Begins:       true,
	}
	for name, c := range map[string]struct {
		killers, healthy, concurrency int
		prefetch                      string
		broker                        drivertest.Config
	}{
		"one among a few":                             {1, 9, 1, "10", rabbit()},
		"one, one at a time":                          {1, 20, 1, "1", rabbit()},
		"one, with concurrency":                       {1, 100, 16, "50", rabbit()},
		"three":                                       {3, 50, 4, "20", rabbit()},
		"one, where Begin is recorded":                {1, 50, 8, "20", exact},
		"three, where Begin is recorded":              {3, 50, 4, "20", exact},
		"one, where Begin is recorded, one at a time": {1, 9, 1, "10", exact},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(c.broker)
				w := newCrashes(t, s, func(m *message.Message) bool { return string(m.Payload) == "kills" },
					concurrency(c.concurrency), param("prefetch", c.prefetch))
				w.start()
				p := open(t, s)
				synctest.Wait()
				for i := range c.killers {
					require.NoError(t, p.Publisher().Publish("orders", message.NewMessage(fmt.Sprint("killer ", i), []byte("kills"))))
				}
				for i := range c.healthy {
					p.publish(fmt.Sprint("healthy ", i))
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				dead := s.Dead("orders.billing_dlq")
				// If another message kills the process between a publish and the ack, there are two copies, each with its own runs
				// and its own dead letter.
				letters := map[string]int{}
				for _, m := range dead {
					letters[m.UUID]++
				}
				for _, m := range dead {
					require.Equal(t, "kills", string(m.Payload))
					require.Equal(t, string(envelope.ReasonCrash), m.Metadata.Get(envelope.KeyDeadLetterReason))
					require.NotContains(t, m.Metadata, envelope.KeySuspect)
					require.LessOrEqual(t, w.runs[m.UUID], 5*letters[m.UUID])
				}
				require.Len(t, letters, c.killers)
				require.Empty(t, s.Messages("orders", "billing"))
				for i := range c.healthy {
					require.NotZero(t, w.handled[fmt.Sprint("healthy ", i)])
				}
				require.LessOrEqual(t, w.starts, 1+5*len(dead))
				require.Zero(t, w.narrowings.early)
			})
		})
	}
}

// After 12 cuts, 48 healthy messages used to be dead-lettered, and so were 8 that took longer than the broker waits for
// an ack.
func TestSuspects_CutsAndSlowHandlersKillNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, concurrency(8), param("prefetch", "20"))
		d := p.consume(func(m *message.Message) {
			time.Sleep(40 * time.Second)
			m.Ack()
		})
		const n = 60
		for i := range n {
			p.publish(strconv.Itoa(i))
		}
		for range 40 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			s.Cut()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, s.Dead("orders.billing_dlq"))
		require.Empty(t, s.Messages("orders", "billing"))
		for i := range n {
			require.Len(t, d.of(strconv.Itoa(i)), 1, "a handler that still runs is not started again")
		}
	})
}

// A suspect ran once, in a process whose connection was cut five times before it was killed. The next process knows
// nothing of the cuts: it took them for six crashes, and dead-lettered the message.
func TestSuspects_CutsBeforeACrashCountOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		dies := open(t, s)
		d := dies.consume(func(*message.Message) { <-t.Context().Done() })
		publishSuspects(t, dies, 1)
		for range 5 {
			time.Sleep(time.Minute) // virtual
			synctest.Wait()
			s.Cut()
		}
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 1, d.total())
		dies.conn.Kill()
		d = open(t, s).consume(ack)
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		require.Empty(t, s.Dead("orders.billing_dlq"))
		require.Equal(t, 1, d.total())
	})
}

// A deployment stops processes one after the other. What the broker counts then is no crash: a suspect that returns has
// no permission to run any more, and is as it was, whatever its handler has done to it.
func TestSuspects_OrderlyStopsKillNothing(t *testing.T) {
	renews := rabbit()
	renews.Renews = true
	for name, broker := range map[string]drivertest.Config{"copies": rabbit(), "renews": renews} {
		t.Run(name, func(t *testing.T) {
			for after := 10 * time.Millisecond; after < 400*time.Millisecond; after += 10 * time.Millisecond {
				stopsKillNothing(t, broker, after)
			}
		})
	}
}

func stopsKillNothing(t *testing.T, broker drivertest.Config, after time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(broker)
		p := open(t, s)
		require.NoError(t, p.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
		publishSuspects(t, p, 8)
		for range 6 {
			stopOrderly(t, open(t, s, concurrency(2), param("crash-limit", "3")), after)
		}
		p.consume(func(m *message.Message) {
			if string(m.Payload) != m.UUID {
				t.Errorf("message %s has the payload %q", m.UUID, m.Payload)
			}
			m.Ack()
		})
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Empty(t, s.Dead("orders.billing_dlq"), "stopped after %s", after)
		require.Empty(t, s.Messages("orders", "billing"))
	})
}

// A handler that outlives the drain has its message still, so the engine must not look at it: a map that is read while
// it is written ends the process. The mark that this handler writes is none of the broker's.
func TestSuspects_AHandlerThatOutlivesTheDrainKeepsItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		ends := make(chan struct{})
		p.consume(func(m *message.Message) {
			m.Metadata.Set(envelope.KeySuspect, "0!")
			<-ends
		})
		p.publish("slow")
		synctest.Wait()
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
				t.Errorf("message %s was published while its handler ran", o.Message.UUID)
				return drivertest.Verdict{Copies: 1}
			}
		})
		require.NoError(t, p.Close())
		close(ends)
		synctest.Wait()
		require.Len(t, s.Messages("orders", "billing"), 1)
	})
}

// publishSuspects publishes n messages that wait for their run.
func publishSuspects(t *testing.T, p *process, n int) {
	t.Helper()
	to := &driver.Destination{Kind: driver.ToConsumer, Topic: "orders", Consumer: "billing"}
	for i := range n {
		m := message.NewMessage(strconv.Itoa(i), []byte(strconv.Itoa(i)))
		m.Metadata.Set(envelope.KeySuspect, "0")
		out := []driver.Outgoing{{Message: m, To: to, Origin: &envelope.Origin{}}}
		require.NoError(t, errors.Join(p.conn.Publish(t.Context(), out)...))
	}
}

// A suspect that another process received, or that is lost, does not leave the window wide, even if its session has
// ended and another one was widened. A session that takes one message at a time used to get the full window.
func TestSuspects_AnothersTurnLeavesNoWideWindow(t *testing.T) {
	for name, c := range map[string]struct {
		suspects, cuts, window int
	}{
		"one session":                      {suspects: 3, window: 10},
		"two sessions":                     {suspects: 1, cuts: 1, window: 10},
		"the last one takes one at a time": {suspects: 1, cuts: 3, window: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := drivertest.NewServer(rabbit())
				window := 0
				s.With(func(h *drivertest.Hooks) {
					h.Receive = func(q driver.Queue) error { window = q.Window; return nil }
					h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
						if len(o.Extra) > 0 && strings.HasSuffix(o.Extra[0].Value, "!") {
							return drivertest.Verdict{} // confirmed, and gone
						}
						return drivertest.Verdict{Copies: 1}
					}
				})
				var n narrowings
				conn := s.Connect()
				p := openOver(t, conn, n.over(conn))
				nacks := 3
				p.consume(func(m *message.Message) {
					if nacks--; nacks >= 0 {
						m.Nack()
						return
					}
					m.Ack()
				})
				publishSuspects(t, p, c.suspects)
				synctest.Wait()
				for range c.cuts {
					s.Cut()
					time.Sleep(900 * time.Millisecond) // virtual: the next session ends at once, too
					synctest.Wait()
				}
				p.publish("nacked")          // and held, which widens the window
				time.Sleep(10 * time.Minute) // virtual
				synctest.Wait()
				require.Equal(t, c.window, window)
				require.Positive(t, slices.Max(n.beyond))
				require.LessOrEqual(t, slices.Max(n.beyond), c.suspects+1, "the messages that are held")
				require.Zero(t, n.beyond[len(n.beyond)-1])
			})
		})
	}
}

// While a broker narrows the window after one message that was held, another is held: the window has room for others.
func TestNack_HeldWhileTheWindowNarrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := narrowings{slow: time.Second}
		conn := drivertest.NewServer(rabbit()).Connect()
		p := openOver(t, conn, n.over(conn), concurrency(2), param("prefetch", "2"))
		release := make(chan struct{})
		defer close(release)
		var d *deliveries
		d = p.consume(func(m *message.Message) {
			switch {
			case m.UUID == "free":
				<-release
			case m.UUID == "first" && len(d.of(m.UUID)) == 3:
				m.Ack() // after 300 ms
			default:
				m.Nack()
			}
		})
		p.publish("first")
		time.Sleep(250 * time.Millisecond) // virtual
		synctest.Wait()
		p.publish("second")         // held after 350 ms
		time.Sleep(5 * time.Second) // virtual
		synctest.Wait()
		p.publish("free", "free")
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Len(t, d.of("free"), 2)
	})
}

// The ack of a message that was held is on its way while the window narrows: the session is not renewed meanwhile, or
// the ack would be lost.
func TestSession_IsNotRenewedWhileAnAckIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := narrowings{slow: 2 * time.Millisecond}
		s := drivertest.NewServer(rabbit())
		conn := s.Connect()
		p := openOver(t, conn, n.over(conn), concurrency(4))
		acked := make(chan struct{})
		var d *deliveries
		d = p.consume(func(m *message.Message) {
			if m.UUID == "held" && len(d.of("held")) <= 8 {
				m.Nack()
				return
			}
			m.Ack()
			if m.UUID == "held" {
				close(acked)
			}
		})
		endAtOnceTwice(s)
		p.publish("held")
		<-acked
		time.Sleep(time.Millisecond) // virtual
		synctest.Wait()
		p.publish("other")
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Zero(t, p.AcksFailed())
		require.Len(t, d.of("other"), 1)
	})
}

// The next session takes one message at a time.
func endAtOnceTwice(s *drivertest.Server) {
	for range 2 {
		s.Cut()
		time.Sleep(500 * time.Millisecond) // virtual
		synctest.Wait()
	}
}

// A suspect that was published to run may be on its way to a session: it is not renewed meanwhile, because the broker
// would count that suspect.
func TestSession_IsNotRenewedWhileASuspectHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(o *driver.Outgoing) drivertest.Verdict {
				if len(o.Extra) > 0 && strings.HasSuffix(o.Extra[0].Value, "!") {
					return drivertest.Verdict{} // confirmed, and on its way
				}
				return drivertest.Verdict{Copies: 1}
			}
		})
		p := open(t, s)
		p.consume(ack)
		endAtOnceTwice(s)
		before := s.Calls("Receive")
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		publishSuspects(t, p, 1)
		synctest.Wait()
		p.publish("other")
		synctest.Wait()
		require.Equal(t, before, s.Calls("Receive"))
		time.Sleep(time.Minute) // virtual: its turn is over
		synctest.Wait()
		p.publish("another")
		synctest.Wait()
		require.Equal(t, before+1, s.Calls("Receive"))
	})
}

// stopOrderly consumes for a while. When the process is closed, its running handlers return their messages.
func stopOrderly(t *testing.T, p *process, after time.Duration) {
	t.Helper()
	var closing atomic.Bool
	p.consume(func(m *message.Message) {
		time.Sleep(30 * time.Millisecond) // virtual
		if closing.Load() {
			m.Payload = []byte("changed")
			m.Nack()
			return
		}
		m.Ack()
	})
	time.Sleep(after) // virtual
	synctest.Wait()
	closing.Store(true)
	require.NoError(t, p.Close())
}

// A second worker that flaps, as well as restarts, cause counted deliveries that this process does not know of.
func TestSuspects_AnotherWorkerThatFlapsKillsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		over := make(chan struct{})
		steady := open(t, s, concurrency(2))
		d := steady.consume(func(m *message.Message) {
			time.Sleep(300 * time.Millisecond)
			m.Ack()
		})
		const n = 100
		for i := range n {
			steady.publish(strconv.Itoa(i))
		}
		for range 30 {
			flaps := open(t, s, concurrency(2))
			flaps.consume(func(m *message.Message) {
				<-over
				m.Nack()
			})
			time.Sleep(400 * time.Millisecond)
			synctest.Wait()
			flaps.conn.Kill()
		}
		t.Cleanup(func() { close(over) })
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Empty(t, s.Dead("orders.billing_dlq"))
		require.Empty(t, s.Messages("orders", "billing"))
		handled := 0
		for i := range n {
			if len(d.of(strconv.Itoa(i))) > 0 {
				handled++
			}
		}
		require.Equal(t, n, handled)
	})
}

// 501 quick messages used to wait 25 seconds behind a suspect.
func TestSuspects_DoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, concurrency(4))
		d := p.consume(func(m *message.Message) {
			if m.UUID == "suspect" {
				time.Sleep(time.Minute)
			}
			m.Ack()
		})
		marked := message.NewMessage("suspect", nil)
		marked.Metadata.Set(envelope.KeySuspect, "1")
		to := &driver.Destination{Kind: driver.ToConsumer, Topic: "orders", Consumer: "billing"}
		second := marked.Copy()
		second.UUID = "suspect 2"
		for _, m := range []*message.Message{marked, second} {
			out := []driver.Outgoing{{Message: m, To: to, Origin: &envelope.Origin{}}}
			require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), out)...))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		began := time.Since(d.began)
		for i := range 501 {
			p.publish(strconv.Itoa(i))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range 501 {
			require.Less(t, d.of(strconv.Itoa(i))[0]-began, time.Second)
		}
		require.Empty(t, d.of("suspect 2"), "one at a time")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Len(t, d.of("suspect 2"), 1)
		require.Len(t, d.of("suspect"), 1)
		require.Empty(t, s.Messages("orders", "billing"))
	})
}

func TestSuspects_AreTriedInPlaceWhilePublishingIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		require.NoError(t, p.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
		p.publish("1", "2", "3")
		for range 4 { // these processes die with the messages in flight
			dies := open(t, s)
			dies.consume(func(*message.Message) { <-t.Context().Done() })
			synctest.Wait()
			dies.conn.Kill()
		}
		s.PausePublishing()
		d := p.consume(ack)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, 3, d.total())
		s.ResumePublishing()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, d.total())
		require.Empty(t, s.Messages("orders", "billing"))
		require.Empty(t, s.Dead("orders.billing_dlq"))
	})
}

// A redelivery is also recognised by its bytes, because ids come from producers and are not always unique.
func TestAck_LostOfAMessageWithTheSameIDIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(func(m *message.Message) {
			if string(m.Payload) == "first" {
				s.Cut() // the second is in flight, and is redelivered as well
				time.Sleep(time.Second)
			}
			m.Ack()
		})
		for _, payload := range []string{"first", "second"} {
			foreign := driver.Outgoing{
				Message: message.NewMessage("same", []byte(payload)),
				To:      &driver.Destination{Topic: "orders"},
			}
			require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{foreign})...))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of("same"), 2)
		require.Equal(t, uint64(1), p.Replays())
		require.Empty(t, s.Messages("orders", "billing"))
	})
}
