package rabbitmq_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
)

// ledger counts what happened to each message.
type ledger struct {
	mu      sync.Mutex
	entries map[string]int
	total   int
}

func newLedger() *ledger {
	return &ledger{entries: map[string]int{}}
}

// note records id once more and returns how often it has been recorded.
func (l *ledger) note(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[id]++
	l.total++
	return l.entries[id]
}

// count returns how many different messages are recorded, and how many repetitions.
func (l *ledger) count() (different, again int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries), l.total - len(l.entries)
}

// wait waits until n different messages are recorded.
func (l *ledger) wait(t *testing.T, n int) {
	t.Helper()
	await.Count(t, n, func() int { have, _ := l.count(); return have }, "messages are missing")
}

// requireExactly fails unless exactly the numbers for which wanted is true are recorded.
func (l *ledger) requireExactly(t *testing.T, n int, wanted func(i int) bool) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	want := 0
	for i := range n {
		if wanted(i) {
			want++
			require.Positive(t, l.entries[strconv.Itoa(i)], "message %d is missing", i)
		}
	}
	require.Len(t, l.entries, want, "unexpected messages")
}
