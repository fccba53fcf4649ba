package access

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Refusals take nothing, however many there are at the same time.
func TestLimiter_ConcurrentRefusals(t *testing.T) {
	t.Parallel()
	l := NewLimiter(0.001, 1)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 100_000 {
				l.Allow("x")
			}
		})
	}
	callers.Wait()
	wait, ok := l.Allow("x")
	require.False(t, ok)
	require.InDelta(t, 1_000, wait.Seconds(), 10)
}
