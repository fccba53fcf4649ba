package rabbitmq_test

import (
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// The connection is cut every 200 ms while 10,000 messages are processed, of which 20 % fail: half of those once, half
// always. Every message is processed or dead-lettered, and those delivered twice are counted. If a machine needs longer
// than 200 ms to connect and to handle the prefetched messages, the next cut waits for that, otherwise there would be
// no progress.
func TestFlap_EveryMessageIsProcessedOrDead(t *testing.T) {
	t.Parallel()
	const n, every = 10_000, 200 * time.Millisecond
	const prefetch, callers = 64, 32
	url := services.SharedRabbitMQ(t).VHost(t)
	proxy := services.NewProxy(t, url)
	const delay = 100 * time.Millisecond
	settings := []func(*brokers.Config){
		naming(brokers.Laravel()), delays(delay), params("grid", "false", "prefetch", strconv.Itoa(prefetch)),
		func(c *brokers.Config) { c.Concurrency = 16 },
	}
	consumer := openBroker(t, proxy.URL(t, url), settings...)
	producer := openBroker(t, proxy.URL(t, url), settings...)
	plain := dialPlain(t, url)

	isDead := func(i int) bool { return i%10 == 3 }
	failsOnce := func(i int) bool { return i%10 == 7 }
	processed := newLedger()
	serve(t, consumer, "orders", middleware.Config{
		MaxAttempts: 3, Backoff: middleware.Constant(delay),
	}, func(m *message.Message) error {
		i, err := strconv.Atoi(m.UUID)
		if err != nil {
			return middleware.Permanent(err)
		}
		a, _ := middleware.AttemptFrom(m.Context())
		switch {
		case isDead(i) && i%20 == 3:
			return middleware.Permanent(errors.New("invalid"))
		case isDead(i), failsOnce(i) && a.Number == 1:
			return errDown
		}
		processed.note(m.UUID)
		time.Sleep(10 * time.Millisecond) // real time: work that spans many cuts
		return nil
	})

	stopCutting := cutRepeatedly(t, proxy, every, prefetch, processed)
	defer stopCutting()

	var refused sync.Map // possibly stored although publishing failed; published again, as a caller would do
	spread(callers, n, func(i int) {
		for {
			err := producer.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), []byte("x")))
			if err == nil {
				return
			}
			refused.Store(i, err)
		}
	})
	processed.wait(t, n-n/10)
	dead := newLedger()
	note := func(d amqp.Delivery) {
		i, err := strconv.Atoi(d.MessageId)
		require.NoError(t, err)
		require.True(t, isDead(i), "message %d should not be dead-lettered: %v", i, d.Headers)
		dead.note(d.MessageId)
		require.NotEqual(t, "crash", d.Headers["x-dead-letter-reason"], "a lost connection is not a crash of the handler")
	}
	deliveries, err := plain.ch.Consume("orders_dlq", "", true, false, false, false, nil)
	require.NoError(t, err)
	for have := 0; have < n/10; have, _ = dead.count() {
		select {
		case d := <-deliveries:
			note(d)
		case <-time.After(await.Patience):
			require.FailNow(t, "dead letters are missing", "%d of %d", have, n/10)
		}
	}
	cuts := stopCutting()

	// Every copy caused by a cut is settled as well: no queue has messages left, and no message has both results.
	await.None(t, func() int { return plain.depth("orders") + plain.depth("orders_retry") })
	require.NoError(t, consumer.Close())
	for more := true; more; {
		select {
		case d := <-deliveries:
			note(d)
		case <-time.After(time.Second): // no more messages
			more = false
		}
	}
	processed.requireExactly(t, n, func(i int) bool { return !isDead(i) })
	dead.requireExactly(t, n, isDead)
	_, processedAgain := processed.count()
	_, deadAgain := dead.count()
	failures := 0
	refused.Range(func(any, any) bool { failures++; return true })
	t.Logf("%d messages, %d cuts: %d processed + %d dead, 0 lost; %d processed and %d dead-lettered again; %d callers "+
		"had to publish again",
		n, cuts, n-n/10, n/10, processedAgain, deadAgain, failures)
	require.Greater(t, cuts, 10, "too few cuts to prove anything")
	require.LessOrEqual(t, processedAgain, cuts*(prefetch+callers), "a cut repeats at most the messages in flight")
}

// cutRepeatedly cuts the connections through proxy every so often, but not before that many more messages are
// processed, until stop is called, which returns the number of cuts.
func cutRepeatedly(
	t *testing.T, proxy *services.Proxy, every time.Duration, more int, processed *ledger,
) (stop func() (cuts int)) {
	t.Helper()
	stopped := make(chan struct{})
	var cutting sync.WaitGroup
	cuts := 0
	cutting.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for before := 0; ; {
			select {
			case <-ticker.C:
				now, _ := processed.count()
				if now < before+more {
					continue
				}
				before = now
				if err := proxy.Flap(); err != nil {
					t.Error(err)
				}
				cuts++
			case <-stopped:
				return
			}
		}
	})
	return sync.OnceValue(func() int { close(stopped); cutting.Wait(); return cuts })
}
