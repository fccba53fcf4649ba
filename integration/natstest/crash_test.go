package natstest

import (
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/natsserver"
)

// Consumers are killed with SIGKILL at each step of a message's path, with retries waiting: nothing is lost, and only
// messages that were in flight are handled twice.
func TestCrash_KilledConsumersLoseNothing(t *testing.T) {
	t.Parallel()
	const n = 200
	for _, place := range []string{diesInHandler, diesAfterHandler, diesAfterRetry} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			server := natsserver.Start(t)
			url := with(server.URL(), "ack-wait=3s", "concurrency=4", "prefetch=8")
			require.NoError(t, open(t, server.URL()).Publisher().Publish(topicOrders, numbers(0, n)...))
			l := newLedger()
			for range 2 {
				died := startConsumer(t, url, place, l)
				require.ErrorContains(t, died.Wait(), "killed", "the process did not die %s", place)
			}
			last := startConsumer(t, url, "", l)
			l.wait(t, n)
			require.NoError(t, last.Process.Signal(syscall.SIGTERM))
			require.NoError(t, last.Wait(), "it drains")
			different, total := l.counts()
			t.Logf("%d messages: 0 lost, %d handled twice", n, total-different)
			require.LessOrEqual(t, total-different, 2*8, "more than was in flight")
		})
	}
}

// A message that kills its process is dead-lettered, and the others are handled.
func TestSuspects_OnlyTheKillerIsDead(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	params := []string{"ack-wait=3s", "concurrency=2", "prefetch=4", "crash-limit=4"}
	b := open(t, server.URL())
	letters := deadLetters(t, b)
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 10)...))
	require.NoError(t, b.Publisher().Publish(topicOrders, message.NewMessage(killer, []byte("poison"))))
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(10, 20)...))

	l, crashes := newLedger(), 0
	for {
		p := startConsumer(t, with(server.URL(), params...), "", l)
		ended := make(chan error, 1)
		go func() { ended <- p.Wait() }()
		var dead *message.Message
		select {
		case err := <-ended:
			require.ErrorContains(t, err, "killed")
			crashes++
			require.LessOrEqual(t, crashes, 8, "it is never dead-lettered")
			continue
		case dead = <-letters:
		case <-time.After(await.Patience):
			require.FailNow(t, "the process neither died nor dead-lettered it")
		}
		require.Equal(t, killer, dead.UUID)
		require.Equal(t, string(envelope.ReasonCrash), dead.Metadata[envelope.KeyDeadLetterReason])
		dead.Ack()
		l.wait(t, 20)
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-ended)
		break
	}
	t.Logf("dead-lettered after %d crashes", crashes)
	require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: message.NewMessage("last", nil), Reason: envelope.ReasonManual, Origin: envelope.Origin{Topic: topicOrders},
		At: time.Now(),
	}))
	select {
	case m := <-letters:
		require.Equal(t, "last", m.UUID, "a healthy message was dead-lettered: %s", m.Payload)
	case <-time.After(await.Patience):
		require.FailNow(t, "there is no dead letter")
	}
}

// Clean restarts do not count as crashes, however many there are: messages in flight keep their state.
func TestSuspects_RestartsDoNotCount(t *testing.T) {
	t.Parallel()
	server := natsserver.Start(t)
	b := open(t, server.URL())
	letters := deadLetters(t, b)
	require.NoError(t, b.Publisher().Publish(topicOrders, numbers(0, 5)...))
	for range 8 {
		begun := make(chan struct{}, 10)
		stop := serve(t, server.URL(), func(m *message.Message) error {
			begun <- struct{}{}
			<-m.Context().Done()
			return m.Context().Err()
		}, "ack-wait=3s", "crash-limit=3", "drain=10ms", "prefetch=5")
		select {
		case <-begun:
		case <-time.After(await.Patience):
			require.FailNow(t, "nothing is delivered")
		}
		stop()
	}
	l := newLedger()
	serve(t, server.URL(), recording(l), "ack-wait=3s", "crash-limit=3")
	l.wait(t, 5)
	select {
	case m := <-letters:
		require.FailNow(t, "a healthy message was dead-lettered", string(m.Payload))
	default:
	}
}

// deadLetters reads the dead letters of the consumer without a group on orders.
func deadLetters(t *testing.T, b brokers.Broker) <-chan *message.Message {
	t.Helper()
	sub := b.Subscriber()
	letters, err := sub.Subscribe(t.Context(), brokers.NameScheme{}.For(topicOrders, "").Dead)
	require.NoError(t, err)
	return letters
}
