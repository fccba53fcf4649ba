package live_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// answers is the part of a store that a Monitor uses: it keeps the last report and answers with a pause.
type answers struct {
	driver.ServiceStore

	mu     sync.Mutex
	paused bool
	last   driver.ServiceReport
	err    error
}

func (a *answers) Beat(_ context.Context, r *driver.ServiceReport) (driver.IntakePause, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = *r
	return driver.IntakePause{Service: r.Service, Paused: a.paused, By: "ana"}, a.err
}

func (a *answers) pause(paused bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paused, a.err = paused, err
}

func (a *answers) report() driver.ServiceReport {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// service is a router over memory with a Monitor, in virtual time.
type service struct {
	store  *answers
	broker *memory.Broker
	handle func(*message.Message) error

	mu   sync.Mutex
	seen []string
}

func (s *service) run(m *message.Message) error {
	s.mu.Lock()
	s.seen = append(s.seen, m.UUID)
	s.mu.Unlock()
	if s.handle != nil {
		return s.handle(m)
	}
	return nil
}

func (s *service) handled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

func start(t *testing.T, handle func(*message.Message) error) *service {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	broker, err := memory.New(brokers.Config{Group: "billing", Concurrency: 4, Logger: quiet})
	require.NoError(t, err)
	s := &service{store: &answers{}, broker: broker, handle: handle}
	monitor, err := live.New(live.Config{Service: "billing", Store: s.store, Interval: time.Second, Logger: quiet})
	require.NoError(t, err)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Observer: monitor, Logger: quiet, MaxAttempts: 3,
		Backoff: middleware.Steps(5*time.Second, 30*time.Minute),
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("charge", "orders", monitor.Subscriber(broker.Subscriber()), s.run)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = router.Run(ctx) })
	running.Go(func() { _ = monitor.Run(ctx) })
	<-router.Running()
	t.Cleanup(func() {
		stop()
		running.Wait()
		require.NoError(t, broker.Close())
	})
	return s
}

func (s *service) publish(t *testing.T, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		require.NoError(t, s.broker.Publisher().Publish("orders", message.NewMessage(fmt.Sprint("m-", n), []byte("{}"))))
	}
}

// A paused service finishes its running handlers and receives nothing; resumed, it receives all waiting messages, once.
func TestMonitor_Pause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, func(*message.Message) error {
			time.Sleep(3 * time.Second) // virtual
			return nil
		})
		s.publish(t, 0, 4)
		time.Sleep(1500 * time.Millisecond) // virtual
		synctest.Wait()
		report := s.store.report()
		require.True(t, report.CanPause)
		require.Equal(t, 4, report.Queues[0].Handling)
		q := report.Queues[0]
		require.Equal(t, []string{"orders", "billing", "charge"}, []string{q.Topic, q.Consumer, q.Handler})
		s.store.pause(true, nil)
		time.Sleep(time.Second) // virtual
		synctest.Wait()
		require.True(t, s.store.report().Paused, "it is reported at once")
		s.publish(t, 4, 20)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 4, s.handled(), "the messages in handlers, and no more")
		require.Zero(t, s.store.report().Queues[0].Handling)

		// A store that is down changes nothing.
		s.store.pause(false, errors.New("connection refused"))
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 4, s.handled())
		s.store.pause(false, nil)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, 20, s.handled())
		require.False(t, s.store.report().Paused)
		require.Empty(t, s.store.report().Problem)
	})
}

// A message that waits for a retry is reported with its due time, until it is due.
func TestMonitor_DueTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, func(*message.Message) error { return errors.New("bank: closed") })
		s.publish(t, 0, 3)
		time.Sleep(1500 * time.Millisecond) // virtual
		synctest.Wait()
		q := s.store.report().Queues[0]
		require.Equal(t, int64(3), q.Waiting)
		require.Equal(t, []driver.DueCount{{Within: 10 * time.Second, Messages: 3}}, q.Due)
		require.WithinDuration(t, time.Now(), q.Next, 6*time.Second)
		time.Sleep(8 * time.Second) // virtual
		synctest.Wait()
		q = s.store.report().Queues[0]
		require.Equal(t, []driver.DueCount{{Within: time.Hour, Messages: 3}}, q.Due, "the second retry")
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		require.Zero(t, s.store.report().Queues[0].Waiting)
	})
}

// Due retries are forgotten without a report, too: while the store does not respond, they neither count as waiting nor
// take the place of those that wait.
func TestMonitor_DueTimesWithoutReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		monitor, err := live.New(live.Config{Service: "billing", Store: &answers{}})
		require.NoError(t, err)
		retry := func(n int, delay time.Duration) {
			for range n {
				monitor.RetryScheduled(t.Context(), middleware.RetryScheduled{
					Delivery: &middleware.Delivery{Origin: &envelope.Origin{}}, Decision: middleware.Decision{Delay: delay},
				})
			}
		}
		const most = 100_000 // times that are kept
		for range 2 {
			retry(most, 5*time.Second)
			time.Sleep(10 * time.Second) // virtual
			synctest.Wait()
		}
		retry(7, 30*time.Minute)
		q := monitor.Report(time.Now()).Queues[0]
		require.Equal(t, int64(7), q.Waiting)
		require.Equal(t, []driver.DueCount{{Within: time.Hour, Messages: 7}}, q.Due)
		require.Equal(t, time.Now().Add(30*time.Minute).UTC(), q.Next)

		retry(most, time.Hour) // more than are kept
		require.Equal(t, int64(most+7), monitor.Report(time.Now()).Queues[0].Waiting)
		time.Sleep(2 * time.Hour) // virtual
		synctest.Wait()
		require.Zero(t, monitor.Report(time.Now()).Queues[0].Waiting)
	})
}

func TestMonitor_Circuits(t *testing.T) {
	monitor, err := live.New(live.Config{Service: "billing", Store: &answers{}})
	require.NoError(t, err)
	monitor.BreakerChanged(t.Context(), middleware.BreakerChanged{Key: "charge", From: "closed", To: "open"})
	circuits := monitor.Report(time.Now()).Circuits
	require.Len(t, circuits, 1)
	require.Equal(t, []string{"charge", "open"}, []string{circuits[0].Key, circuits[0].State})
	monitor.BreakerChanged(t.Context(), middleware.BreakerChanged{Key: "charge", From: "half-open", To: "closed"})
	require.Empty(t, monitor.Report(time.Now()).Circuits)
	_, err = live.New(live.Config{Interval: -1})
	require.ErrorContains(t, err, "Service is required")
	require.ErrorContains(t, err, "Store is required")
	require.ErrorContains(t, err, "Interval")
}

// Through a real store: the Monitor learns of an operator's pause by the Manager, and its report can be read.
func TestMonitor_ThroughTheStore(t *testing.T) {
	store, err := sqlstore.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	manager, err := dlq.NewManager(dlq.ManagerConfig{Store: store})
	require.NoError(t, err)
	monitor, err := live.New(live.Config{Service: "billing", Process: "a", Store: store, Interval: 5 * time.Millisecond})
	require.NoError(t, err)
	monitor.Subscriber(nil)
	require.NoError(t, manager.PauseIntake(t.Context(), "billing", true, dlq.By{Actor: "ana", Note: "bank is down"}))
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- monitor.Run(ctx) }()
	for {
		services, err := manager.Services(t.Context(), time.Now().Add(-time.Hour))
		require.NoError(t, err)
		if len(services) == 1 && len(services[0].Processes) == 1 && services[0].Processes[0].Paused {
			require.Equal(t, "ana", services[0].Pause.By)
			break
		}
	}
	stop()
	require.NoError(t, <-ran)
}
