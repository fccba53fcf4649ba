package chaos_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The ledger finds each kind of error.
func TestLedger(t *testing.T) {
	l := newLedger()
	for _, p := range []plan{
		{ID: "good", Kind: passes},
		{ID: "lost", Kind: passes},
		{ID: "unconfirmed", Kind: passes},
		{ID: "wrongly dead", Kind: passes},
		{ID: "both", Kind: flaky},
		{ID: "refused", Kind: refused},
		{ID: "twice", Kind: passes},
		{ID: "early", Kind: delayed, Delay: time.Hour},
		{ID: "retried early", Kind: flaky},
	} {
		l.publishing(p)
		if p.ID != "unconfirmed" {
			l.confirmed(p.ID)
		}
	}
	now := time.Now()
	for _, e := range []struct {
		step, id string
		attempt  int
		at       time.Time
	}{
		{begun, "good", 1, now},
		{handled, "good", 1, now},
		{begun, "both", 1, now},
		{handled, "both", 1, now},
		{handled, "twice", 1, now},
		{handled, "twice", 1, now},
		{begun, "early", 1, now},
		{handled, "early", 1, now},
		{begun, "retried early", 1, now},
		{failed, "retried early", 1, now},
		{begun, "retried early", 2, now.Add(backoff / 2)},
		{handled, "retried early", 2, now},
		{begun, "never published", 1, now},
		{begun, "good", 1, now.Add(time.Minute)},
	} {
		l.enter(e.at, e.step, e.id, e.attempt)
	}
	for _, id := range []string{"wrongly dead", "both", "refused"} {
		l.dead(id, "")
	}

	v := l.verdict()
	require.Equal(t, 1, l.open(), "only the lost one is open")
	requireNamed(t, v.lost, "lost")
	requireNamed(t, v.wronglyDead, "both", "wrongly dead")
	requireNamed(t, v.wronglyHandled, "both")
	requireNamed(t, v.early, "early", "retried early")
	require.Equal(t, 1, v.duplicates)
	require.InDelta(t, time.Minute, v.standstill, float64(time.Second))
	require.Equal(t, []string{"begun: never published"}, l.strange)
}

func requireNamed(t *testing.T, lines []string, ids ...string) {
	t.Helper()
	var names []string
	for _, line := range lines {
		name, _, _ := strings.Cut(line, " (")
		names = append(names, name)
	}
	require.ElementsMatch(t, ids, names)
}

// Setting the clock back neither makes a message early nor hides one that is.
func TestLedger_WallClockIsSet(t *testing.T) {
	l := newLedger()
	for id, began := range map[string]time.Duration{"in time": 600 * time.Millisecond, "early": 400 * time.Millisecond} {
		l.publishing(plan{ID: id, Kind: delayed, Delay: time.Second})
		l.enter(l.accounts[id].published.Round(0).Add(began), begun, id, 1)
	}
	requireNamed(t, l.verdict().early, "in time", "early")
	l.wall = l.wall.Add(500 * time.Millisecond)
	l.watch(time.Now())
	requireNamed(t, l.verdict().early, "early")
}

// The log may be read while a worker is writing a line.
func TestLedger_ReadsWholeLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "book")
	l := newLedger()
	l.publishing(plan{ID: "1", Kind: passes})
	require.NoError(t, os.WriteFile(path, []byte("1 begun 1 1\n2 handl"), 0o600))
	require.NoError(t, l.update(path))
	require.Zero(t, l.accounts["1"].handled)
	require.NoError(t, os.WriteFile(path, []byte("1 begun 1 1\n2 handled 1 1\n"), 0o600))
	require.NoError(t, l.update(path))
	require.Equal(t, 1, l.accounts["1"].handled)
	require.Equal(t, 1, l.accounts["1"].runs)
}
