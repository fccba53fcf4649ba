package watermill_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
)

// waiting publishes once it is released.
type waiting struct {
	begun, released chan struct{}
	published       chan string
}

func (w waiting) Publish(_ string, messages ...*message.Message) error {
	w.begun <- struct{}{}
	<-w.released
	w.published <- messages[0].UUID
	return nil
}

func (waiting) Close() error { return nil }

// A Delays broker that counts crashes, as a SQL queue does, must not take a message that waited there for the one that
// kills the process: its own dead letter queue belongs to no consumer.
func TestDelays_CrashesDeadLetterNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := drivertest.NewServer(drivertest.Config{
			Capabilities: brokers.Capabilities{DeliveryCount: true}, Begins: true,
		})
		w := waiting{make(chan struct{}, 10), make(chan struct{}), make(chan string, 10)}
		release := sync.OnceFunc(func() { close(w.released) })
		start := func() (b brokers.Broker, retries <-chan *message.Message, kill func()) {
			params := []brokers.Param{driver.CrashLimit()}
			cfg, err := brokers.Config{URL: "faulty://", Logger: quiet}.Resolve(params)
			require.NoError(t, err)
			conn := server.Connect()
			delays, err := portable.New(portable.Config{Config: cfg, Params: params, Transport: conn})
			require.NoError(t, err)
			b, err = watermill.New(watermill.Config{
				Publisher: w, Subscriber: newRude(), Delays: delays, Server: "test", Broker: brokers.Config{Logger: quiet},
			})
			require.NoError(t, err)
			retries, err = b.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			t.Cleanup(func() {
				release()
				_ = b.Close()
				_ = delays.Close()
			})
			return b, retries, conn.Kill
		}
		b, retries, kill := start()
		origin := envelope.Origin{Topic: "orders", Consumer: brokers.DefaultGroup}
		require.NoError(t, b.Reschedule(context.Background(), origin, message.NewMessage("retry", nil), time.Second))
		first := message.NewMessage("first", nil)
		envelope.SetDelay(first, time.Second)
		require.NoError(t, b.Publisher().Publish("orders", first))
		var kept []*message.Message
		for range 7 { // another message kills the process while these two are in flight
			select {
			case m := <-retries:
				kept = append(kept, m)
			case <-time.After(time.Hour):
				require.FailNow(t, "the retry was dead-lettered")
			}
			select {
			case <-w.begun:
			case <-time.After(time.Hour):
				require.FailNow(t, "the first delivery was dead-lettered")
			}
			kill()
			time.Sleep(time.Minute) // virtual
			synctest.Wait()
			_, retries, kill = start()
		}
		select {
		case m := <-retries:
			require.Equal(t, "retry", m.UUID)
			m.Ack()
		case <-time.After(time.Hour):
			require.FailNow(t, "the retry was dead-lettered")
		}
		select {
		case <-w.begun:
		case <-time.After(time.Hour):
			require.FailNow(t, "the first delivery was dead-lettered")
		}
		release()
		require.Equal(t, "first", <-w.published)
		for _, m := range kept {
			m.Ack()
		}
	})
}
