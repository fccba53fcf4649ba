package brokers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	_ "github.com/redrive-go/redrive/brokers/watermill/gochannel"
	"github.com/redrive-go/redrive/envelope"
)

// A consumer's waiting messages are moved with it, and another group of the topic is not affected.
func TestMove_MovesOneConsumersWaitingMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, err := memory.New(brokers.Config{Group: "billing"})
		require.NoError(t, err)
		to, err := memory.New(brokers.Config{Group: "billing"})
		require.NoError(t, err)
		others, err := from.Subscriber(brokers.WithGroup("shipping")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		_, err = to.Subscriber(brokers.WithGroup("shipping")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		old := from.Subscriber()
		first, err := old.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, from.Publisher().Publish("orders", message.NewMessage("waits", nil)))
		m := <-first
		origin, _ := envelope.OriginFrom(m.Context())
		again := m.Copy()
		again.Metadata[envelope.KeyRetryCount] = "2"
		require.NoError(t, from.Reschedule(t.Context(), *origin, again, time.Hour))
		m.Ack()
		(<-others).Ack()
		require.NoError(t, old.Close())

		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		moved := 0
		go func() {
			ended <- brokers.Move(ctx, brokers.MoveConfig{
				From: from, To: to, Topic: "orders", Consumer: "billing", Moved: func(*message.Message) { moved++ },
			})
		}()
		synctest.Wait()
		begun := time.Now()
		second, err := to.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		m = <-second
		require.Equal(t, time.Hour, time.Since(begun))
		require.Equal(t, "waits", m.UUID)
		require.Equal(t, "2", m.Metadata[envelope.KeyRetryCount])
		m.Ack()
		cancel()
		require.NoError(t, <-ended)
		require.Equal(t, 1, moved)
		require.NoError(t, errors.Join(from.Close(), to.Close()))
	})
	require.ErrorContains(t, brokers.Move(t.Context(), brokers.MoveConfig{}), "are required")
}

// A server of the same kind may have a consumer of the same name, which is not the one that the message came from.
func TestMove_BetweenServersOfOneKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened [2]brokers.Broker
		for i := range opened {
			var err error
			opened[i], err = brokers.Open(t.Context(), fmt.Sprintf("gochannel://%s%d?group=billing", t.Name(), i))
			require.NoError(t, err)
		}
		require.NoError(t, opened[0].Publisher().Publish("orders", message.NewMessage("waits", nil)))
		messages, err := opened[1].Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- brokers.Move(ctx, brokers.MoveConfig{
				From: opened[0], To: opened[1], Topic: "orders", Consumer: "billing",
			})
		}()
		m := <-messages
		require.Equal(t, "waits", m.UUID)
		m.Ack()
		cancel()
		require.NoError(t, <-ended)
		require.NoError(t, errors.Join(opened[0].Close(), opened[1].Close()))
	})
}

type refusing struct {
	brokers.Broker

	fault error
	tries int
}

func (r *refusing) Reschedule(context.Context, envelope.Origin, *message.Message, time.Duration) error {
	r.tries++
	return r.fault
}

// What the new broker refuses was repeated without end. Now it ends the move, and stays on the old broker: at once if
// it is final, such as a message that is too large, and otherwise, such as a missing permission, after a while.
func TestMove_ARefusalEndsIt(t *testing.T) {
	for name, c := range map[string]struct {
		fault  error
		cancel time.Duration
		final  bool
	}{
		"TooLarge":    {brokers.ErrTooLarge, time.Minute, true},
		"Unroutable":  {brokers.ErrUnroutable, time.Minute, true},
		"Unsupported": {brokers.ErrUnsupported, time.Minute, true},
		"Temporary":   {errors.New("connection lost"), time.Minute, false},
		"Other":       {errors.New("user may not publish"), time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				from, err := memory.New(brokers.Config{Group: "billing"})
				require.NoError(t, err)
				to := &refusing{Broker: from, fault: c.fault}
				require.NoError(t, from.Publisher().Publish("orders", message.NewMessage("m", nil)))
				ctx, cancel := context.WithTimeout(t.Context(), c.cancel)
				defer cancel()
				err = brokers.Move(ctx, brokers.MoveConfig{From: from, To: to, Topic: "orders", Consumer: "billing"})
				if c.final {
					require.ErrorIs(t, err, c.fault)
					require.ErrorContains(t, err, "message m")
				} else {
					require.NoError(t, err)
					require.Greater(t, to.tries, 1)
				}
				require.Equal(t, c.final, ctx.Err() == nil, "it ends on its own")
				left, err := from.Subscriber().Subscribe(t.Context(), "orders")
				require.NoError(t, err)
				(<-left).Ack()
				require.NoError(t, from.Close())
			})
		})
	}
}
