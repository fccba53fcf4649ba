package engine_test

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
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

// A network that keeps breaking slows the engine down but does not stop it: there is a pause only after a session that
// made no progress.
func TestSession_ThatMadeProgressIsReopenedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s, concurrency(4), param("prefetch", "20"))
		d := p.consume(func(m *message.Message) {
			time.Sleep(10 * time.Millisecond)
			m.Ack()
		})
		const n = 2000
		for i := range n {
			p.publish(strconv.Itoa(i))
		}
		for range 150 { // within 30 seconds, of which the handlers need five
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			s.Cut()
		}
		synctest.Wait()
		for i := range n {
			require.NotEmpty(t, d.of(strconv.Itoa(i)), i)
		}
		require.Empty(t, s.Dead("orders.billing_dlq"))
	})
}

// A session that ends only to be renewed is followed by another one at once, and no warning is logged.
func TestSession_IsRenewedWithoutAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(ack)
		before := s.Calls("Receive")
		for i := range 10 {
			s.Renew()
			synctest.Wait()
			require.Equal(t, before+i+1, s.Calls("Receive"), "without a pause")
		}
		p.publish("1")
		synctest.Wait()
		require.Equal(t, 1, d.total())
		require.Empty(t, p.log.String())
	})
}

// The end of a session is noticed even while its deliveries fill the window and a handler blocks them, whether or not
// the broker counts deliveries.
func TestSession_ThatEndsWithAFullWindowIsNoticed(t *testing.T) {
	for _, counts := range []bool{true, false} {
		t.Run(strconv.FormatBool(counts), func(t *testing.T) { endWithAFullWindow(t, counts) })
	}
}

func endWithAFullWindow(t *testing.T, counts bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Capabilities.DeliveryCount = counts
		s := drivertest.NewServer(cfg)
		p := open(t, s, param("prefetch", "3"))
		release := make(chan struct{})
		d := p.consume(func(m *message.Message) {
			<-release
			m.Ack()
		})
		p.publish("1", "2", "3", "4", "5", "6")
		synctest.Wait()
		for range 10 {
			before := s.Calls("Receive")
			s.Cut()
			time.Sleep(11 * time.Second)
			synctest.Wait()
			require.Equal(t, before+1, s.Calls("Receive"))
		}
		close(release)
		time.Sleep(time.Minute)
		synctest.Wait()
		if counts {
			require.Equal(t, 6, d.total(), "each once")
		}
		require.Empty(t, s.Messages("orders", "billing"))
	})
}

// The broker counts messages in flight when a connection ends, and eventually gives them up on its own.
func TestSession_BrokerGivesUpNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.GiveUp = 4
		s := drivertest.NewServer(cfg)
		p := open(t, s, concurrency(2), param("prefetch", "10"))
		d := p.consume(func(m *message.Message) {
			time.Sleep(10 * time.Minute)
			m.Ack()
		})
		const n = 30
		for i := range n {
			p.publish(strconv.Itoa(i))
		}
		for range 50 {
			time.Sleep(11 * time.Second)
			synctest.Wait()
			s.Cut()
		}
		time.Sleep(4 * time.Hour)
		synctest.Wait()
		require.Empty(t, s.Dead(drivertest.GaveUp))
		require.Empty(t, s.Dead("orders.billing_dlq"))
		require.Empty(t, s.Messages("orders", "billing"))
		for i := range n {
			require.Len(t, d.of(strconv.Itoa(i)), 1)
		}
	})
}

// An unreadable message reaches no handler, and is dead-lettered with everything that could be read.
func TestMalformed_IsDeadLetteredBeforeItsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		s.With(func(h *drivertest.Hooks) {
			h.Delivery = func(d *driver.Delivery) {
				if d.Message.UUID == "bad" {
					d.Malformed = "nested too deep"
				}
			}
		})
		p := open(t, s)
		d := p.consume(ack)
		p.publish("1", "bad", "2")
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 2, d.total())
		require.Empty(t, d.of("bad"))
		dead := s.Dead("orders.billing_dlq")
		require.Len(t, dead, 1)
		require.Equal(t, "bad", string(dead[0].Payload))
		require.Equal(t, string(envelope.ReasonMalformed), dead[0].Metadata[envelope.KeyDeadLetterReason])
		require.Equal(t, "nested too deep", dead[0].Metadata[envelope.KeyErrorMessage])
	})
}

// Foreign messages with the same content and without ids are distinct messages.
func TestAck_LostOfAMessageWithoutIDCountsForThatOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		d := p.consume(func(m *message.Message) {
			time.Sleep(100 * time.Millisecond)
			m.Ack()
		})
		for range 5 {
			tick := driver.Outgoing{Message: message.NewMessage("", []byte("tick")), To: &driver.Destination{Topic: "orders"}}
			require.NoError(t, errors.Join(s.Connect().Publish(t.Context(), []driver.Outgoing{tick})...))
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		s.Cut() // the first is with its handler, whose ack is lost
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, d.of(""), 6)
		require.Zero(t, p.Replays())
	})
}

// A message that arrives early is not due, even if processes that had it in flight have died.
func TestSuspects_AreNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		p := open(t, s)
		require.NoError(t, p.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
		m := message.NewMessage("delayed", nil)
		envelope.SetDelay(m, 50*time.Second)
		began := time.Now()
		require.NoError(t, p.Publisher().Publish("orders", m))
		time.Sleep(11 * time.Second)
		synctest.Wait()
		s.PausePublishing()
		for range 3 {
			dies := open(t, s)
			dies.consume(func(*message.Message) { t.Error("early") })
			time.Sleep(time.Second)
			synctest.Wait()
			dies.conn.Kill()
		}
		s.ResumePublishing()
		d := p.consume(ack)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, d.of("delayed"), 1)
		require.GreaterOrEqual(t, d.began.Add(d.of("delayed")[0]).Sub(began), 50*time.Second)
	})
}

// On a broker without delays, suspects that wait for their turn stay unacked: otherwise they would be published again
// and again.
func TestSuspects_WithoutDelaysArePublishedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := rabbit()
		cfg.Traits.Early, cfg.Steps, cfg.Capabilities.MaxDelay = false, nil, -1
		s := drivertest.NewServer(cfg)
		w := newCrashes(t, s, func(m *message.Message) bool { return string(m.Payload) == "kills" }, concurrency(4),
			param("prefetch", "20"))
		w.start()
		p := open(t, s)
		synctest.Wait()
		require.NoError(t, p.Publisher().Publish("orders", message.NewMessage("killer", []byte("kills"))))
		const n = 50
		for i := range n {
			p.publish(fmt.Sprint("healthy ", i))
		}
		before := s.Calls("Publish")
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Len(t, s.Dead("orders.billing_dlq"), 1)
		require.Empty(t, s.Messages("orders", "billing"))
		require.Less(t, s.Calls("Publish")-before, 300)
		for i := range n {
			require.NotZero(t, w.handled[fmt.Sprint("healthy ", i)])
		}
	})
}

// Acks wait briefly for others, in slots of the window that no handler needs, or in a few slots of a large window, but
// not in a small window whose slots the handlers need, or in a session that takes one message at a time.
func TestAcks_ShareCallsUnlessAHandlerWaits(t *testing.T) {
	for _, c := range []struct {
		prefetch    string
		concurrency int
		handle      time.Duration
		more        time.Duration // each message takes that much longer than the previous one
		most        int           // calls per hundred acks
		least       int
		cuts        int
	}{
		{"101", 1, 100 * time.Microsecond, 0, 10, 1, 0},
		{"64", 64, time.Millisecond, 10 * time.Microsecond, 40, 20, 0},
		{"8", 8, time.Millisecond, 0, 100, 20, 0},
		{"101", 1, 100 * time.Microsecond, 0, 100, 100, 2},
	} {
		t.Run(fmt.Sprintf("prefetch %s, cuts %d", c.prefetch, c.cuts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := rabbit()
				cfg.Traits.SettleBatch, cfg.Traits.SettleLinger, cfg.Traits.SettleFrees = 1000, 5*time.Millisecond, true
				s := drivertest.NewServer(cfg)
				p := open(t, s, concurrency(c.concurrency), param("prefetch", c.prefetch))
				d := p.consume(func(m *message.Message) {
					i, _ := strconv.Atoi(m.UUID)
					time.Sleep(c.handle + time.Duration(i)*c.more)
					m.Ack()
				})
				for range c.cuts {
					s.Cut()
					time.Sleep(900 * time.Millisecond)
					synctest.Wait()
				}
				for i := range 100 {
					p.publish(strconv.Itoa(i))
				}
				began := time.Now()
				time.Sleep(4 * time.Millisecond)
				synctest.Wait()
				for time.Since(began) < time.Second && len(s.Messages("orders", "billing")) > 0 {
					time.Sleep(time.Millisecond)
					synctest.Wait()
				}
				require.Equal(t, 100, d.total())
				require.Less(t, time.Since(began), 100*time.Millisecond)
				require.LessOrEqual(t, s.Calls("Settle"), c.most)
				require.GreaterOrEqual(t, s.Calls("Settle"), c.least)
			})
		})
	}
}

// On a bus, an event that no service reads is not an error, but a missing bus is.
func TestEvent_ToAMissingBusIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(rabbit())
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict {
				return drivertest.Verdict{Err: fmt.Errorf("no exchange: %w: %w", brokers.ErrUnroutable, driver.ErrMissing)}
			}
		})
		p := open(t, s, func(c *brokers.Config) { c.Naming = brokers.ServiceBus("shop") })
		require.ErrorIs(t, p.Publisher().Publish("order.paid", message.NewMessage("1", nil)), brokers.ErrUnroutable)
	})
}

// When acks that could not be stored are tried again, the first may be stored and another not. That ended the process.
func TestSession_StoresOneOfTwoAcks(t *testing.T) {
	for range 30 { // which acks share a batch is left to chance
		synctest.Test(t, storesOneOfTwoAcks)
	}
}

func storesOneOfTwoAcks(t *testing.T) {
	cfg := rabbit()
	cfg.Traits.SettleBatch, cfg.Traits.SettleLinger = 10, 10*time.Millisecond
	s := drivertest.NewServer(cfg)
	var mu sync.Mutex // a batch is settled while another is repeated
	tries, second := map[any]int{}, 0
	stored := make(chan struct{}, 9)
	s.With(func(h *drivertest.Hooks) {
		h.Settle = func(one driver.Settlement) error {
			mu.Lock()
			defer mu.Unlock()
			tries[one.Delivery.Token]++
			if tries[one.Delivery.Token] == 2 {
				second++
			}
			if tries[one.Delivery.Token] == 1 || tries[one.Delivery.Token] == 2 && second%2 == 1 {
				return errors.New("locked")
			}
			stored <- struct{}{}
			return nil
		}
	})
	p := open(t, s, concurrency(9), param("prefetch", "20"))
	release := make(chan struct{})
	d := p.consume(func(m *message.Message) {
		<-release
		m.Ack()
	})
	for i := range 9 {
		p.publish(strconv.Itoa(i))
	}
	synctest.Wait()
	close(release)
	for range 9 {
		<-stored
	}
	synctest.Wait()
	require.Equal(t, 9, d.total())
	require.Empty(t, s.Messages("orders", "billing"))
	require.Contains(t, p.log.String(), "error=locked")
}
