package docstest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Every command in the runbook works, with the ID, GROUP and TOPIC of a store in which the alert's condition holds.
// Commands that only read share a store, and must show what the next command needs.
func TestRunbook_CommandsRun(t *testing.T) {
	t.Parallel()
	program := built(t)
	typed := map[string]bool{}
	var looks []string
	for _, p := range pages(t) {
		if p.path != "docs/runbook.md" {
			continue
		}
		for _, block := range p.blocks("console") {
			for line := range strings.Lines(block) {
				command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ redrive ")
				if !ok || typed[command] {
					continue
				}
				typed[command] = true
				if !changes(command) {
					looks = append(looks, command)
					continue
				}
				t.Run(command, func(t *testing.T) {
					t.Parallel()
					change(t, program, command)
				})
			}
		}
	}
	require.Greater(t, len(typed), 25)
	t.Run("looking", func(t *testing.T) {
		t.Parallel()
		s := newService(t)
		stopped := s.stopped(t)
		awaiting := s.awaiting(t)
		l, err := s.letters.Store().List(t.Context(), dlq.Filter{ErrorText: "no customer"}, dlq.Page{})
		require.NoError(t, err)
		e := l.Entries[0]
		named := strings.NewReplacer("runs show ID", "runs show "+stopped, "ID", driver.FormatID(e.ID), "TOPIC", "orders",
			"BROKER", "queue")
		for _, command := range looks {
			if strings.HasPrefix(command, "topology check") {
				continue // a SQL queue needs none: TestTopology of integration/command runs it on RabbitMQ
			}
			output := s.run(t, program, named.Replace(command))
			for of, needed := range map[string][]string{
				"dlq groups": {e.Fingerprint, e.Cause}, "dlq list": {"orders"}, "dlq show": {e.ErrorMessage, "order"},
				"dlq tail":                  {"orders"},
				"runs list --state stopped": {stopped}, "runs list --state awaiting_approval": {awaiting},
				"runs show": {stopped, "stopped"},
				"doctor":    {"store"}, "explain": {"attempt 4"}, "dlq report": {e.Cause}, "dlq stats": {"orders"},
			} {
				if strings.HasPrefix(command, of) {
					for _, text := range needed {
						require.Contains(t, strings.ToLower(output), strings.ToLower(text), command)
					}
				}
			}
		}
	})
}

// changes reports whether a command does more than read.
func changes(command string) bool {
	for _, verb := range []string{
		"redrive", "resolve", "discard", "import", "resume", "cancel", "approve", "reject",
		"pause",
	} {
		if strings.HasPrefix(command, "dlq "+verb) || strings.HasPrefix(command, "runs "+verb) {
			return true
		}
	}
	return false
}

// change runs a command that changes something, and checks the result.
func change(t *testing.T, program, command string) {
	t.Helper()
	s := newService(t)
	stats := func() driver.Counts {
		stats, err := s.letters.Store().Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		return stats.Counts
	}
	l, err := s.letters.Store().List(t.Context(), dlq.Filter{ErrorText: "bank"}, dlq.Page{})
	require.NoError(t, err)
	group, many := l.Entries[0].Fingerprint, int64(len(l.Entries))
	require.Equal(t, int64(7), many)
	verb := strings.Fields(command)[1]
	meant := map[bool]int64{
		strings.Contains(command, "GROUP"): many, strings.Contains(command, "TOPIC"): 8,
		strings.Contains(command, " ID"): 1,
	}[true]
	run := ""
	switch verb {
	case "resume", "cancel":
		run = s.stopped(t)
	case "approve", "reject":
		run = s.awaiting(t)
	case "pause":
		run = s.start(t, redrive.Spec{Rate: 0.1}, redrive.Running)
	case "import":
		s.run(t, program, "dlq export --file letters.jsonl")
	}
	id := driver.FormatID(l.Entries[0].ID)
	if run != "" {
		id = run
	}
	named := strings.NewReplacer("ID", id, "GROUP", group, "TOPIC", "orders")
	s.run(t, program, named.Replace(command), "--yes") // a terminal asks
	state := func(want redrive.State) {
		require.Eventually(t, func() bool {
			r, err := s.letters.Store().(redrive.Store).Run(t.Context(), run)
			return err == nil && r.State == want
		}, 2*time.Minute, 10*time.Millisecond, want)
	}
	switch verb {
	case "redrive":
		require.Eventually(t, func() bool { return stats().Resolved == meant }, 2*time.Minute, 10*time.Millisecond)
		require.Equal(t, 8-meant, stats().Pending)
	case "resolve":
		require.Equal(t, driver.Counts{Pending: 8 - meant, Resolved: meant}, stats())
	case "discard":
		require.Equal(t, driver.Counts{Pending: 8 - meant, Discarded: meant}, stats())
	case "import":
		require.Equal(t, driver.Counts{Pending: 8}, stats(), "what is there stays")
	case "resume":
		state(redrive.Completed)
		require.Equal(t, driver.Counts{Pending: 1, Resolved: 7}, stats(), "all but the one for which it had stopped")
	case "approve":
		state(redrive.Completed)
		require.Equal(t, driver.Counts{Resolved: 8}, stats())
	case "cancel", "reject":
		state(redrive.Cancelled)
		require.Equal(t, driver.Counts{Pending: 8}, stats())
	case "pause":
		state(redrive.Paused)
	default:
		t.Fatalf("no test knows what %q does", command)
	}
}

// stopped makes a run that stopped automatically; the service works again.
func (s *service) stopped(t *testing.T) string {
	t.Helper()
	s.broken.Store(true)
	id := s.start(t, redrive.Spec{Canary: []int{1}}, redrive.Stopped)
	s.broken.Store(false)
	return id
}

// awaiting makes a run that waits for a second person.
func (s *service) awaiting(t *testing.T) string {
	t.Helper()
	return s.start(t, redrive.Spec{}, redrive.AwaitingApproval)
}

// start starts a run as user bob, drives it like a server, and waits for a state.
func (s *service) start(t *testing.T, spec redrive.Spec, until redrive.State) string {
	t.Helper()
	cfg := dlq.ManagerConfig{Store: s.letters.Store(), Redriver: s.broker}
	if until == redrive.AwaitingApproval {
		cfg.Approval = &dlq.Approval{Above: 1}
	}
	manager, err := dlq.NewManager(cfg)
	require.NoError(t, err)
	runner, err := redrive.NewRunner(manager, redrive.Config{WorkInterval: 20 * time.Millisecond})
	require.NoError(t, err)
	background(t, runner.Work)
	run, err := runner.StartRun(t.Context(), spec, dlq.By{Actor: "bob"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		r, err := runner.Run(t.Context(), run.ID)
		return err == nil && r.State == until
	}, 2*time.Minute, 10*time.Millisecond, until)
	return run.ID
}
