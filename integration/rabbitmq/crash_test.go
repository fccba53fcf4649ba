package rabbitmq_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the SQL driver

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite://
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// A message whose handler ends the process on every delivery is dead-lettered because of the broker's count before it
// runs again; the messages that were prefetched or in flight with it are handled, although RabbitMQ counts them too.
func TestConsume_CrashLimit(t *testing.T) { //nolint:tparallel // also runs as the child process, so it is not parallel
	if url := os.Getenv("REDRIVE_CRASH_URL"); url != "" {
		crashingConsumer(t, url)
		return
	}
	t.Parallel()
	for name, tc := range map[string]struct {
		settings []string
		into     string // the child's Config.DeadLetters
	}{
		"one at a time":       {settings: []string{"grid", "false", "crash-limit", "3"}},
		"with messages ahead": {settings: []string{"grid", "false", "crash-limit", "3", "prefetch", "20"}},
		"into the store":      {settings: []string{"grid", "false", "crash-limit", "3"}, into: "store"},
		"the store is down":   {settings: []string{"grid", "false", "crash-limit", "3"}, into: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings, store := tc.settings, filepath.Join(t.TempDir(), "letters.db")
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			b := openBroker(t, url, naming(brokers.Laravel()), params(settings...))
			require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
			for i := range 40 {
				if i == 15 {
					require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("killer", []byte("poison"))))
				}
				require.NoError(t, b.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), []byte("good"))))
			}

			crashes := 0
			for {
				cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestConsume_CrashLimit$")
				cmd.Env = append(os.Environ(), "REDRIVE_CRASH_URL="+url, "REDRIVE_CRASH_PARAMS="+strings.Join(settings, " "),
					"REDRIVE_CRASH_INTO="+tc.into, "REDRIVE_CRASH_STORE="+store)
				out, err := cmd.CombinedOutput()
				if err == nil && p.depth("orders") == 0 {
					break
				}
				if err == nil { // it stopped with some in flight
					continue
				}
				require.ErrorContains(t, err, "killed", string(out))
				crashes++
				require.LessOrEqual(t, crashes, 3, "it is never dead-lettered")
			}
			require.Equal(t, 3, crashes)
			require.Zero(t, p.depth("orders"), "all others are handled")
			if tc.into == "store" {
				requireKilledIn(t, store)
				require.Zero(t, p.depth("orders_dlq"), "the dead letter is in exactly one place")
				return
			}
			d := p.next("orders_dlq")
			require.Equal(t, "killer", d.MessageId)
			require.Equal(t, "poison", string(d.Body))
			require.Equal(t, "crash", d.Headers["x-dead-letter-reason"])
			if p.depth("orders_dlq") > 0 {
				other := p.next("orders_dlq")
				require.Failf(t, "another message is mistaken for the killer", "%s, %v", other.MessageId, other.Headers)
			}
		})
	}
}

// crashingConsumer is the child process.
func crashingConsumer(t *testing.T, url string) {
	t.Helper()
	cfg := middleware.Laravel(5)
	p := dialPlain(t, url)
	dead := func() bool { return p.depth("orders_dlq") > 0 }
	b := openBroker(t, url, naming(brokers.Laravel()), params(strings.Fields(os.Getenv("REDRIVE_CRASH_PARAMS"))...),
		func(c *brokers.Config) {
			c.Concurrency = min(4, prefetchOf(c))
			switch os.Getenv("REDRIVE_CRASH_INTO") {
			case "store": // the same sink for the broker and the pipeline
				letters := openLetters(t, os.Getenv("REDRIVE_CRASH_STORE"))
				c.DeadLetters, cfg.DeadLetters = letters.DeadLetter, letters
				dead = func() bool {
					list, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{Limit: 1})
					return err == nil && len(list.Entries) > 0
				}
			case "broken":
				c.DeadLetters = func(context.Context, *envelope.DeadLetter) error { panic("no such table") }
			}
		})
	s := serve(t, b, "orders", cfg, func(m *message.Message) error {
		if m.UUID == "killer" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	})
	// The child is stopped at the end of the test, and drains. A message that has killed the process waits behind the
	// others.
	await.Progress(t, func() (int, bool) { n := p.depth("orders"); return n, n == 0 && dead() })
	for more := true; more; {
		select {
		case <-s.runs:
		case <-time.After(time.Second): // no more messages
			more = false
		}
	}
}

func prefetchOf(c *brokers.Config) int {
	n, err := strconv.Atoi(c.Params["prefetch"])
	if err != nil {
		return 1
	}
	return n
}

// openLetters opens dead letters in a SQLite file.
func openLetters(t *testing.T, path string) *dlq.Letters {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite://"+path, dlq.WithSpool(t.TempDir()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	return letters
}

// requireKilledIn fails unless the store has exactly the killer, with everything that an operator needs.
func requireKilledIn(t *testing.T, path string) {
	t.Helper()
	letters := openLetters(t, path)
	list, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{Limit: 10})
	require.NoError(t, err)
	require.Len(t, list.Entries, 1)
	entry, err := letters.Store().Get(t.Context(), list.Entries[0].ID)
	require.NoError(t, err)
	require.Equal(t, "killer", entry.Body.UUID)
	require.Equal(t, "poison", string(entry.Body.Payload))
	require.Equal(t, envelope.ReasonCrash, entry.Reason)
	require.Equal(t, "orders", entry.Origin.Consumer, "the destination of a redrive")
	require.Contains(t, entry.ErrorMessage, "delivered 3 times without an answer")
	require.Equal(t, dlq.Pending, entry.Status)
}
