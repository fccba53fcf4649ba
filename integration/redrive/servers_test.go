package redrive_test

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// fleet is the work of four servers with one store: a run over its letters, a rule for those of another cause, and a
// foreign dead letter queue to collect.
type fleet struct {
	letters *dlq.Letters
	broker  string
	servers []*program

	mu        sync.Mutex
	delivered map[string]int // by message id
}

const (
	fleetRun, fleetRule, fleetForeign = 3000, 100, 300
	fleetRate                         = 200 // per second, so that servers can start meanwhile on a busy machine
	foreignQueue                      = "foreign.dead"
)

// Four servers share a store. The one that holds a run is killed. Two others, one of which has taken the run over, are
// frozen while the fourth finishes half of the rest, and then continue. Every letter is redriven, those of the run, the
// rule and the collector are counted once, and the stored counts match the rows.
//
// Wrong clocks are left to dlqtest.RunClocks, which every store passes: a Go process gets the time from the kernel and
// not from libc, so faketime has no effect on a child process.
func TestServe_FourServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	first := f.servers[0]
	first.start(t)
	out := first.command(t, "dlq", "redrive", "--topic", topic, "--class", "*bank.Closed",
		"--id", "shared", "--detach", "--yes")
	require.Contains(t, out, "run shared")
	f.servers[1].start(t)
	f.servers[2].start(t)
	f.reach(t, fleetRun/4)
	require.NoError(t, first.cmd.Process.Kill())
	require.Error(t, <-first.ended, "it was killed")
	f.reach(t, fleetRun/2)
	f.servers[3].start(t)
	for _, s := range f.servers[1:3] { // one of them holds the run
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	}
	f.collect(t, fleetForeign/2)
	f.reach(t, fleetRun*3/4)
	for _, s := range f.servers[1:3] {
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGCONT))
	}
	f.collect(t, fleetForeign/2)
	f.finish(t)
	for _, s := range f.servers[1:] {
		require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
		require.NoError(t, <-s.ended, s.log.String())
	}
	f.requireBalance(t)
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	store, broker := services.SharedPostgres(t).Database(t), services.SharedRabbitMQ(t).VHost(t)
	f := &fleet{letters: openLetters(t, store), broker: broker, delivered: map[string]int{}}
	b := openBroker(t, broker)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.NoError(t, f.letters.Close())
	})
	fill(t, f.letters, 0, fleetRun)
	for n := range fleetRule {
		d := dead(fleetRun + n)
		d.Class = "*bank.Away"
		_, err := f.letters.Store().Put(t.Context(), dlq.NewEntry(d))
		require.NoError(t, err)
	}
	serve(t, b, f.letters, func(m *message.Message) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.delivered[m.Metadata[envelope.KeyMessageID]]++
		return nil
	})
	f.declare(t)
	for range 4 {
		f.servers = append(f.servers, newProgram(t, store, broker, fmt.Sprintf(
			"  rate: %d\n  rules: [{name: bank, error_class: '*bank.Away', after: 1s, rate: 50}]\n"+
				"collector: {sources: [{broker: rabbit, topic: %s}]}\n", fleetRate, foreignQueue)))
	}
	return f
}

// channel calls do with a channel of a separate connection, like a foreign service's.
func (f *fleet) channel(t *testing.T, do func(*amqp.Channel) error) {
	t.Helper()
	connection, err := amqp.Dial(f.broker)
	require.NoError(t, err)
	defer connection.Close()
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, do(channel))
}

func (f *fleet) declare(t *testing.T) {
	t.Helper()
	f.channel(t, func(c *amqp.Channel) error {
		_, err := c.QueueDeclare(foreignQueue, true, false, false, false, nil)
		return err
	})
}

// collect publishes n messages to the foreign dead letter queue.
func (f *fleet) collect(t *testing.T, n int) {
	t.Helper()
	f.channel(t, func(c *amqp.Channel) error {
		if err := c.Confirm(false); err != nil {
			return err
		}
		for i := range n {
			sent, err := c.PublishWithDeferredConfirmWithContext(t.Context(), "", foreignQueue, true, false, amqp.Publishing{
				MessageId: fmt.Sprintf("foreign-%d-%d", time.Now().UnixNano(), i), Body: fmt.Appendf(nil, `{"parcel":%d}`, i),
				DeliveryMode: amqp.Persistent,
			})
			if err != nil {
				return err
			}
			if _, err := sent.WaitContext(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
}

// reach waits until n messages have been delivered.
func (f *fleet) reach(t *testing.T, n int) {
	t.Helper()
	await.Progress(t, func() (int, bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.delivered), len(f.delivered) >= n
	})
}

// finish waits until no run is active and every message is collected.
func (f *fleet) finish(t *testing.T) {
	t.Helper()
	runs, ok := driver.As[redrive.Store](f.letters.Store())
	require.True(t, ok)
	await.Progress(t, func() (string, bool) {
		stats, err := f.letters.Store().Stats(t.Context(), driver.StatsQuery{})
		require.NoError(t, err)
		active, _, err := runs.Runs(t.Context(), redrive.RunFilter{Active: true}, driver.Page{Limit: driver.MaxPage})
		require.NoError(t, err)
		done := stats.Counts == driver.Counts{Pending: fleetForeign, Resolved: fleetRun + fleetRule}
		return fmt.Sprint(stats.Counts, len(active)), done && len(active) == 0
	})
	all, _, err := runs.Runs(t.Context(), redrive.RunFilter{}, driver.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	var ruled int64
	for i := range all {
		require.Equal(t, redrive.Completed, all[i].State, all[i].ID)
		if all[i].ID == "shared" {
			require.Equal(t, redrive.Counts{Succeeded: fleetRun}, all[i].Counts)
		} else {
			ruled += all[i].Counts.Succeeded
		}
	}
	require.Equal(t, int64(fleetRule), ruled, "each entry belongs to one run")
}

// requireBalance compares the deliveries with the rows, the stored counts and the audit log.
func (f *fleet) requireBalance(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Len(t, f.delivered, fleetRun+fleetRule, "every message is redriven")
	extra := 0
	for id, n := range f.delivered {
		require.LessOrEqual(t, n, 3, "%s was delivered more often than there were faults", id)
		extra += n - 1
	}
	t.Logf("%d deliveries were repeated", extra)
	require.LessOrEqual(t, extra, 2*2*fleetRate/10, "two batches were in flight at each of the two faults")
	store := f.letters.Store()
	before, err := store.Stats(t.Context(), driver.StatsQuery{})
	require.NoError(t, err)
	require.NoError(t, store.Recount(t.Context()))
	after, err := store.Stats(t.Context(), driver.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, after.Counts, before.Counts)
	redrives, closed := map[int64]int{}, map[int64]int{}
	for page := (driver.Page{Limit: driver.MaxPage}); ; {
		records, next, err := store.Audit(t.Context(), driver.AuditFilter{}, page)
		require.NoError(t, err)
		for i := range records {
			if records[i].Action == driver.ActionRedrive {
				redrives[records[i].EntryID]++
			}
			if records[i].Action == driver.ActionSucceed {
				closed[records[i].EntryID]++
			}
		}
		if page.After = next; next == "" {
			break
		}
	}
	require.Len(t, redrives, fleetRun+fleetRule, "the audit log has a redrive of each entry")
	require.Len(t, closed, fleetRun+fleetRule, "and the success of each")
	for id, n := range closed {
		require.Equal(t, 1, n, "entry %d", id)
	}
}
