package access

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Refusals take nothing, however many there are at the same time.
func TestLimiter_ConcurrentRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes, and nothing becomes allowed
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
		require.Equal(t, 1_000*time.Second, wait)
	})
}
