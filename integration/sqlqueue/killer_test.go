package sqlqueue_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
)

// victimURL is set for processes whose handler kills them.
const victimURL = "REDRIVE_TEST_VICTIM_URL"

// victim consumes "jobs" until it gets the message that kills it, and records every other message that it handles.
func victim(url string) int {
	ctx := context.Background()
	b, err := brokers.Open(ctx, url)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	queue, _ := b.(*sqlqueue.Broker)
	messages, err := queue.Subscriber(brokers.WithConcurrency(8)).Subscribe(ctx, "jobs")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for m := range messages {
		if m.UUID == "killer" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		if err := queue.Publisher().Publish("handled", message.NewMessage(m.UUID, nil)); err != nil {
			m.Nack()
			continue
		}
		m.Ack()
	}
	return 0
}

func startVictim(t *testing.T, url string) (cmd *exec.Cmd, died <-chan error) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimURL+"="+url)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may be dead
	return cmd, ended
}

// A message that kills its process does so as often as crash-limit allows, and is then dead-lettered; the other
// messages are handled, although they were leased or in flight each time the process died.
func TestCrashLimit_MessageThatKillsIsDeadLettered(t *testing.T) {
	t.Parallel()
	const limit = 4
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		// A lease that expires because the machine is busy would count as a crash.
		url = with(url, "x-lease=3s&x-poll=10ms&x-crash-limit="+strconv.Itoa(limit))
		queue := openQueue(t, url)
		require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
		var list []*message.Message
		for i := range 100 {
			id := strconv.Itoa(i)
			if i == 50 {
				id = "killer"
			}
			list = append(list, message.NewMessage(id, payload))
		}
		require.NoError(t, queue.Publisher().Publish("jobs", list...))
		dead, err := queue.Subscriber(inGroup("operator")).Subscribe(t.Context(),
			brokers.NameScheme{}.For("jobs", brokers.DefaultGroup).Dead)
		require.NoError(t, err)

		deaths := 0
		_, died := startVictim(t, url)
		var letter *message.Message
		for letter == nil {
			select {
			case err := <-died:
				require.ErrorContains(t, err, "killed")
				deaths++
				require.LessOrEqual(t, deaths, limit)
				_, died = startVictim(t, url)
			case letter = <-dead:
				letter.Ack()
			case <-time.After(await.Patience):
				require.FailNow(t, "the message that kills was not dead-lettered", "%d processes died", deaths)
			}
		}
		require.Equal(t, limit, deaths)
		require.Equal(t, "killer", letter.UUID)
		require.Equal(t, payload, []byte(letter.Payload))
		require.Equal(t, string(envelope.ReasonCrash), letter.Metadata.Get(envelope.KeyDeadLetterReason))
		require.Equal(t, "jobs", letter.Metadata.Get(envelope.KeyTopic))
		require.Equal(t, brokers.DefaultGroup, letter.Metadata.Get(envelope.KeyConsumer))

		handled(t, queue, url, func() int { return len(list) - 1 }, func(*message.Message) {})
		select {
		case m := <-dead:
			require.FailNow(t, "a message handled at the same time was mistaken for it", m.UUID)
		case err := <-died:
			require.FailNow(t, "the message killed a process after it was dead-lettered", "%v", err)
		default:
		}
	})
}
