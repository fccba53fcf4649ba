package kafka

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestClocks_AreNeverAheadOfTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clocks
		_, known := c.now(1)
		require.False(t, known)

		const skew = -time.Minute // the broker's clock
		answer := func(latency time.Duration) {
			stamp := time.Now().Add(skew)
			time.Sleep(latency)
			c.observe(1, stamp)
		}
		behind := func() time.Duration {
			shown, known := c.now(1)
			require.True(t, known)
			return time.Now().Add(skew).Sub(shown)
		}
		answer(50 * time.Millisecond)
		require.Equal(t, 50*time.Millisecond, behind())
		answer(3 * time.Millisecond)
		require.Equal(t, 3*time.Millisecond, behind(), "a faster answer says more")
		answer(2 * time.Second)
		require.Equal(t, 3*time.Millisecond, behind())

		time.Sleep(staleAfter)
		_, known = c.now(1)
		require.False(t, known, "clocks drift apart")
		answer(time.Second)
		require.Equal(t, time.Second, behind())
	})
}
