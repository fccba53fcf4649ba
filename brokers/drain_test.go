package brokers_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// On a plain gochannel all five handlers lose their contexts and their results when the router closes.
func TestDrain_HandlersFinishWhenTheRouterCloses(t *testing.T) {
	for name, stop := range map[string]func(r *message.Router, cancel context.CancelFunc) error{
		"router.Close":        func(r *message.Router, _ context.CancelFunc) error { return r.Close() },
		"Run's context ended": func(_ *message.Router, cancel context.CancelFunc) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := gochannel.NewGoChannel(gochannel.Config{Persistent: true, OutputChannelBuffer: 10}, watermill.NopLogger{})
				results, err := memory.New(brokers.Config{})
				require.NoError(t, err)
				router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
				require.NoError(t, err)

				var cancelled atomic.Int32
				router.AddHandler("work", "jobs", brokers.Drain(inner, 20*time.Second), "results", results.Publisher(),
					func(m *message.Message) ([]*message.Message, error) {
						select {
						case <-time.After(10 * time.Second):
						case <-m.Context().Done():
							cancelled.Add(1)
						}
						return []*message.Message{m.Copy()}, nil
					})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stopped := make(chan error, 1)
				go func() { stopped <- router.Run(ctx) }()
				<-router.Running()
				for i := range 5 {
					require.NoError(t, inner.Publish("jobs", message.NewMessage(strconv.Itoa(i), nil)))
				}
				synctest.Wait()

				started := time.Now()
				require.NoError(t, stop(router, cancel))
				require.NoError(t, <-stopped)
				synctest.Wait()
				if name == "router.Close" {
					require.Equal(t, 10*time.Second, time.Since(started))
				}
				time.Sleep(10 * time.Second) // virtual: Run returns before the handlers when only its context ends
				synctest.Wait()

				require.Zero(t, cancelled.Load(), "no handler's context was cancelled")
				require.Equal(t, 5, results.Depth("results", "").Ready, "their results were published")
				require.NoError(t, results.Close())
				require.NoError(t, inner.Close())
			})
		})
	}
}

func TestDrain_GivesUpAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := gochannel.NewGoChannel(gochannel.Config{Persistent: true, OutputChannelBuffer: 1}, watermill.NopLogger{})
		sub := brokers.Drain(inner, 3*time.Second)
		in, err := sub.Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		require.NoError(t, inner.Publish("jobs", message.NewMessage("stuck", nil)))
		stuck := <-in

		started := time.Now()
		closed := make(chan error, 2)
		go func() { closed <- sub.Close() }()
		go func() { closed <- sub.Close() }()
		require.NoError(t, <-closed)
		require.NoError(t, <-closed, "closing twice")
		require.Equal(t, 3*time.Second, time.Since(started))
		require.Error(t, stuck.Context().Err(), "the handler that is left behind learns of it")
		_, open := <-in
		require.False(t, open)

		_, err = sub.Subscribe(t.Context(), "jobs")
		require.ErrorIs(t, err, brokers.ErrClosed)
	})
}
