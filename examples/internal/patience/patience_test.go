package patience_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/examples/internal/patience"
)

// A run that makes progress may take any time, and one that does not is ended.
func TestContext_EndsWithoutProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var far atomic.Int64
		start := time.Now()
		ctx, cancel := patience.Context(t.Context(), time.Minute, func() int { return int(far.Load()) })
		defer cancel()
		for range 100 {
			<-time.After(50 * time.Second)
			synctest.Wait()
			far.Add(1)
			require.NoError(t, ctx.Err())
		}
		<-ctx.Done()
		still := time.Since(start) - 5000*time.Second
		require.GreaterOrEqual(t, still, time.Minute)
		require.LessOrEqual(t, still, 2*time.Minute)
	})
}
