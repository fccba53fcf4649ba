package sqlqueue_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// workerURL is set for worker processes, and workerHolds for one that hangs while it has messages in flight.
const (
	workerURL   = "REDRIVE_TEST_WORKER_URL"
	workerHolds = "REDRIVE_TEST_WORKER_HOLDS"
)

// worker consumes "jobs" until it is killed, and records each message that it has handled, with the number of its
// delivery. With workerHolds it handles a few, publishes to "held" which message it has in flight, and then hangs.
func worker(url string) int {
	ctx := context.Background()
	b, err := brokers.Open(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	queue, _ := b.(*sqlqueue.Broker)
	messages, err := queue.Subscriber(brokers.WithConcurrency(4)).Subscribe(ctx, "jobs")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var handlers sync.WaitGroup
	var begun atomic.Int32
	holds := os.Getenv(workerHolds) != ""
	for m := range messages {
		handlers.Go(func() {
			if n := begun.Add(1); holds && n > 20 {
				if err := queue.Publisher().Publish("held", message.NewMessage(m.UUID, nil)); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
				select {}
			}
			origin, _ := envelope.OriginFrom(m.Context())
			done := message.NewMessage(m.UUID, []byte(strconv.Itoa(origin.DeliveryCount)))
			if err := queue.Publisher().Publish("handled", done); err != nil {
				m.Nack()
				return
			}
			m.Ack()
		})
	}
	return 0
}

// startWorker starts a worker process, which is killed at the end of the test.
func startWorker(t *testing.T, url string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), workerURL+"="+url), env...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have been killed
		_ = cmd.Wait()
	})
	return cmd
}

// handled reads the topic "handled" until it has as many different messages as all returns, and returns how often each
// was handled. The last one must be read after all returns the final number. It waits as long as there are new
// messages; without new ones, messages are lost only if none is waiting in "jobs" or in that topic.
func handled(t *testing.T, queue *sqlqueue.Broker, url string, all func() int,
	each func(m *message.Message),
) map[string]int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	messages, err := queue.Subscriber(brokers.WithConcurrency(32)).Subscribe(ctx, "handled")
	require.NoError(t, err)
	runs := map[string]int{}
	for len(runs) == 0 || len(runs) != all() {
		select {
		case m := <-messages:
			require.NotNil(t, m, "the subscription has ended")
			runs[m.UUID]++
			m.Ack()
			each(m)
		case <-time.After(await.Patience):
			waiting := count(t, openDB(t, url), "SELECT count(*) FROM redrive_queue_messages")
			require.NotZero(t, waiting, "messages are lost: %d of %d are handled, and none is waiting", len(runs), all())
			require.FailNow(t, "no message has been handled for a while", "%d of %d are, %d are waiting", len(runs), all(),
				waiting)
		}
	}
	return runs
}

// Of ten workers one is killed with messages in flight: every message is handled, those of the dead worker by others
// once its lease has expired, as a second delivery. A row that was redelivered because its lease was forgotten would be
// a first delivery.
func TestTenWorkers_OneIsKilled(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, oneOfTenWorkersIsKilled)
}

func oneOfTenWorkersIsKilled(t *testing.T, url string) {
	t.Helper()
	const n = 3000
	// Ten processes wait for one disk, and with SQLite for one writer: on a busy machine a renewal may take seconds, and
	// a publication more than its usual timeout.
	url = with(url, "x-max-connections=4&x-lease=8s&x-publish-timeout="+await.Patience.String())
	queue := openQueue(t, url)
	require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
	held, err := queue.Subscriber().Subscribe(t.Context(), "held")
	require.NoError(t, err)

	victim := startWorker(t, url, workerHolds+"=1")
	for range 9 {
		startWorker(t, url)
	}
	// Messages are published until the worker is dead, so that it gets some, and once more afterwards; at most n wait to
	// be handled.
	var (
		dead      atomic.Bool
		total     atomic.Int64
		room      = make(chan struct{}, n/50)
		published = make(chan error, 1)
	)
	go func() {
		for sent := 50; ; sent += 50 {
			room <- struct{}{}
			last := sent > n && dead.Load()
			if last {
				total.Store(int64(sent))
			}
			if err := queue.Publisher().Publish("jobs", batch(50)...); err != nil || last {
				published <- err
				return
			}
		}
	}()
	inHand := make(chan string, 1)
	go func() {
		defer dead.Store(true)
		if m := <-held; m != nil {
			_ = victim.Process.Kill() // SIGKILL
			inHand <- m.UUID
			m.Ack()
		}
		close(inHand)
	}()
	deliveries := map[string]string{}
	all := func() int {
		select {
		case err := <-published:
			require.NoError(t, err) // unpublished messages cannot be lost
			published <- nil
		default:
		}
		return int(total.Load())
	}
	runs := handled(t, queue, url, all, func(m *message.Message) {
		if _, again := deliveries[m.UUID]; !again && len(deliveries)%50 == 49 {
			<-room
		}
		deliveries[m.UUID] = string(m.Payload)
	})
	require.NoError(t, <-published)
	taken := <-inHand
	require.Contains(t, runs, taken)
	require.NotEqual(t, "1", deliveries[taken], "the message that the dead worker had in flight was delivered before")
	twice := 0
	for _, times := range runs {
		twice += times - 1
	}
	// At most the messages that the dead worker had handled but not acked are handled twice: 4 handlers, and acks in
	// flight.
	require.LessOrEqual(t, twice, 600)
	t.Logf("%d messages, %d handled twice", len(runs), twice)
}

// A database is killed and restarted three times under load: every confirmed message is handled.
func TestDatabaseRestart_UnderLoad(t *testing.T) {
	t.Parallel()
	services.EachDatabase(t, restartUnderLoad)
}

func restartUnderLoad(t *testing.T, s services.DatabaseServer) {
	t.Helper()
	url := with(s.Database(t), "x-lease=3s&x-publish-timeout=3s")
	queue := openQueue(t, url)
	messages, err := queue.Subscriber(brokers.WithConcurrency(16)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)

	var (
		mu        sync.Mutex
		confirmed = map[string]bool{}
		runs      = map[string]int{}
		failures  int
	)
	producing, stop := context.WithCancel(t.Context())
	var producers, consumers sync.WaitGroup
	for range 8 {
		producers.Go(func() {
			pub := queue.Publisher()
			for producing.Err() == nil {
				m := message.NewMessage(watermill.NewUUID(), payload)
				err := pub.Publish("jobs", m)
				mu.Lock()
				if err == nil {
					confirmed[m.UUID] = true
				} else {
					failures++
				}
				mu.Unlock()
			}
		})
	}
	for range 16 {
		consumers.Go(func() {
			for m := range messages {
				mu.Lock()
				runs[m.UUID]++
				mu.Unlock()
				m.Ack()
			}
		})
	}
	missing := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for id := range confirmed {
			if runs[id] == 0 {
				n++
			}
		}
		return n
	}
	different := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(runs)
	}
	for range 3 {
		await.Count(t, different()+200, different)
		require.NoError(t, s.Kill())
		require.NoError(t, s.Start(t.Context()))
	}
	await.Count(t, different()+200, different, "work continues after the last restart")
	stop()
	producers.Wait()
	await.None(t, missing, "confirmed messages are not handled")

	mu.Lock()
	twice := 0
	for _, times := range runs {
		twice += times - 1
	}
	t.Logf("%d confirmed, %d publishes failed, %d handled, %d twice", len(confirmed), failures, len(runs), twice)
	require.Positive(t, failures, "no publication failed in an outage, so this test proves nothing")
	require.Less(t, twice, len(runs)/2)
	mu.Unlock()
	require.NoError(t, queue.Close())
	consumers.Wait()
}

// A handler that takes longer than its lease keeps the message, and no other worker gets it meanwhile, although the
// other messages of its batch are settled.
func TestSlowHandler_RenewsItsLease(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		url = with(url, longLease+"&x-poll=10ms")
		first, second := openQueue(t, url), openQueue(t, url)
		require.NoError(t, first.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
		mine, err := first.Subscriber(concurrently(3)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		require.NoError(t, first.Publisher().Publish("jobs", batch(3)...))
		receive(t, mine).Ack()
		m := receive(t, mine)
		receive(t, mine).Ack()

		others, err := second.Subscriber().Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		select {
		case other := <-others:
			require.Failf(t, "a second worker got the message", "delivery of %s", other.UUID)
		case <-time.After(twoLongLeases): // in real time: that is the test
		}
		require.NoError(t, m.Context().Err(), "the handler must not be cancelled")
		m.Ack()
		await.None(t, func() int { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") })
	})
}

// A process that hangs loses its lease: another worker gets the message, and the late ack of the first one has no
// effect.
func TestStuckProcess_LosesItsLease(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		proxied := services.NewProxy(t, url)
		stuck := openQueue(t, with(proxied.URL(t, url), "x-lease=400ms&x-poll=10ms&x-drain=100ms&x-publish-timeout=500ms"))
		healthy := openQueue(t, with(url, "x-lease=1m&x-poll=10ms"))
		mine, err := stuck.Subscriber().Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		require.NoError(t, healthy.Publisher().Publish("jobs", message.NewMessage("m", payload)))
		m := <-mine
		require.NoError(t, proxied.Freeze())

		others, err := healthy.Subscriber().Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		other := <-others
		require.Equal(t, "m", other.UUID)
		<-m.Context().Done()
		require.ErrorIs(t, context.Cause(m.Context()), sqlqueue.ErrLeaseLost)

		require.NoError(t, proxied.Heal())
		origin, ok := envelope.OriginFrom(m.Context())
		require.True(t, ok)
		await.True(t, func() bool {
			err := stuck.Reschedule(t.Context(), *origin, m.Copy(), 0)
			return errors.Is(err, sqlqueue.ErrLeaseLost)
		}, "the stuck process must not create a second message")
		m.Ack()
		require.NoError(t, other.Context().Err())
		other.Ack()
		db := openDB(t, url)
		await.None(t, func() int { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") })
	})
}
