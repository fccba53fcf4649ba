package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/internal/engine"
	"github.com/redrive-go/redrive/envelope"
)

// leasing is a broker that stores due times, leases messages and records which handlers have started, as a SQL database
// does.
func leasing() drivertest.Config {
	return drivertest.Config{
		Traits: driver.Traits{
			Prompt: true, NackPause: true, StablePosition: true, PublishBatch: 100, SettleBatch: 50,
			SettleLinger: 5 * time.Millisecond,
		},
		Capabilities: brokers.Capabilities{Groups: true, DeliveryCount: true},
		Begins:       true,
	}
}

// If a row is locked for a while, the publication is retried until the caller's timeout, and no longer.
func TestPublish_ALockedRowIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		p := open(t, s)
		d := p.consume(ack)
		synctest.Wait()
		busy := 3
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict {
				if busy--; busy >= 0 {
					return drivertest.Verdict{Err: driver.ErrBusy}
				}
				return drivertest.Verdict{Copies: 1}
			}
		})
		p.publish("m")
		synctest.Wait()
		require.Len(t, d.of("m"), 1)

		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict { return drivertest.Verdict{Err: driver.ErrBusy} }
		})
		began := time.Now()
		require.ErrorIs(t, p.Publisher().Publish("orders", message.NewMessage("n", nil)), driver.ErrBusy)
		require.Equal(t, p.Config().PublishTimeout, time.Since(began))
	})
}

// A publish that shares a call with others has the whole timeout, unless it has to wait for an earlier call.
func TestPublish_InASharedCallHasTheWholeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		p := open(t, s)
		p.subscribe()
		timeout := p.Config().PublishTimeout
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict {
				return drivertest.Verdict{Copies: 1, Late: timeout * 9 / 10}
			}
		})
		p.publish("slow")
		s.With(func(h *drivertest.Hooks) {
			h.Publish = func(*driver.Outgoing) drivertest.Verdict { return drivertest.Verdict{Hang: true} }
		})
		began := time.Now()
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second) // virtual
				called := time.Now()
				err := p.Publisher().Publish("orders", message.NewMessage("m", nil))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("unexpected answer: %v", err)
				}
				assert.LessOrEqual(t, time.Since(called), timeout)
			})
		}
		all.Wait()
		require.LessOrEqual(t, time.Since(began), timeout+2*time.Second)
	})
}

// together stores either all messages of a call or none.
type together struct {
	*drivertest.Transport

	first sync.Once
	begin chan struct{} // closed: the first call may end
	sizes []int
}

func (t *together) Publish(ctx context.Context, out []driver.Outgoing) []error {
	t.first.Do(func() { <-t.begin })
	t.sizes = append(t.sizes, len(out))
	if !slices.ContainsFunc(out, func(o driver.Outgoing) bool { return o.Message.UUID == "refused" }) {
		return t.Transport.Publish(ctx, out)
	}
	err := errors.New("refused by the test")
	if len(out) > 1 {
		err = fmt.Errorf("%w: %w", driver.ErrTogether, err)
	}
	return slices.Repeat([]error{err}, len(out))
}

// The messages of RescheduleAll have nothing to do with each other: only the refused one fails.
func TestRescheduleAll_ARefusedMessageFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		transport := &together{Transport: s.Connect(), begin: make(chan struct{})}
		close(transport.begin)
		cfg, err := brokers.Config{URL: "faulty://"}.Resolve(params())
		require.NoError(t, err)
		b, err := engine.New(engine.Config{Config: cfg, Params: params(), Transport: transport})
		require.NoError(t, err)
		var (
			origins  []envelope.Origin
			messages []*message.Message
		)
		for i, id := range []string{"a", "refused", "b"} {
			origins = append(origins, envelope.Origin{Topic: "orders", Consumer: strconv.Itoa(i)})
			messages = append(messages, message.NewMessage(id, nil))
		}
		faults := b.RescheduleAll(t.Context(), origins, messages)
		require.NoError(t, faults[0])
		require.ErrorContains(t, faults[1], "refused by the test")
		require.NoError(t, faults[2])
		require.Len(t, s.Messages("orders", "0"), 1)
		require.Empty(t, s.Messages("orders", "1"))
		require.Len(t, s.Messages("orders", "2"), 1)
		require.NoError(t, b.Close())
	})
}

// Callers share a call. If the transport stores either all or none of it, only the caller whose message is refused
// fails, with all of its messages.
func TestPublish_ARefusedCallerFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		transport := &together{Transport: s.Connect(), begin: make(chan struct{})}
		cfg, err := brokers.Config{URL: "faulty://"}.Resolve(params())
		require.NoError(t, err)
		b, err := engine.New(engine.Config{Config: cfg, Params: params(), Transport: transport})
		require.NoError(t, err)
		require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
		var (
			mu     sync.Mutex
			failed = map[string]bool{}
			all    sync.WaitGroup
		)
		publish := func(ids ...string) {
			all.Go(func() {
				var list []*message.Message
				for _, id := range ids {
					list = append(list, message.NewMessage(id, nil))
				}
				if err := b.Publisher().Publish("orders", list...); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed[ids[0]] = true
				}
			})
		}
		publish("before")
		synctest.Wait()
		publish("a")
		publish("accepted", "refused")
		publish("b")
		synctest.Wait()
		close(transport.begin)
		all.Wait()
		require.Equal(t, map[string]bool{"accepted": true}, failed)
		require.Equal(t, []int{1, 4}, transport.sizes[:2], "the callers did not share a call")
		var stored []string
		for _, m := range s.Messages("orders", brokers.DefaultGroup) {
			stored = append(stored, m.UUID)
		}
		require.ElementsMatch(t, []string{"before", "a", "b"}, stored)
		require.NoError(t, b.Close())
	})
}

// Suspects run one at a time, and the next one starts once the broker has stored the settlement of the previous one: if
// the next one kills the process, the previous one must not be counted again.
func TestSuspects_TheNextStartsOnceTheAckIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		for range 2 {
			p := open(t, s, concurrency(4))
			end := make(chan struct{})
			t.Cleanup(func() { close(end) }) // the handlers of a dead process
			p.consume(func(m *message.Message) { <-end; m.Nack() })
			if s.Calls("Publish") == 0 {
				p.publish("a", "b")
			}
			synctest.Wait()
			p.conn.Kill()
		}
		p := open(t, s, concurrency(4))
		s.With(func(h *drivertest.Hooks) {
			h.Settle = func(driver.Settlement) error { return errors.New("read-only") }
		})
		d := p.consume(ack)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, d.total(), "the second has begun")
		s.With(func(h *drivertest.Hooks) { h.Settle = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, d.total())
		require.Empty(t, s.Messages("orders", "billing"))
	})
}

// If the lease of a suspect is lost before its handler has started, the message is not delivered.
func TestSuspects_ALostOneIsNotDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := drivertest.NewServer(leasing())
		p := open(t, s)
		end := make(chan struct{})
		t.Cleanup(func() { close(end) })
		p.consume(func(m *message.Message) { <-end; m.Nack() })
		p.publish("a")
		synctest.Wait()
		p.conn.Kill()

		begins, handled := 0, 0
		s.With(func(h *drivertest.Hooks) {
			h.Begin = func(*message.Message) error {
				if begins++; begins <= 3 {
					return fmt.Errorf("of another worker: %w", driver.ErrLost)
				}
				return nil
			}
		})
		second := open(t, s)
		second.consume(func(m *message.Message) { handled = begins; m.Ack() })
		time.Sleep(90 * time.Millisecond) // a Begin that fails for another reason is retried after 100 ms
		synctest.Wait()
		require.Equal(t, 4, handled, "each time it is released and redelivered")
	})
}
