package kafka

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// Any delay from 0 to 30 days takes a bounded number of topics, and is late by at most 1 % or 250 ms, and never early.
func TestTiers_AnyDelayIsExactWithinOnePercent(t *testing.T) {
	all := newTiers(nil)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		scale := time.Duration(1) << random.IntN(42) // from nanoseconds to an hour, then all
		delay := min(time.Duration(random.Int64N(int64(scale)*1000)), envelope.MaxDelay)

		// The worst record in front of this one waits for the full tier.
		waited, steps := time.Duration(0), 0
		for waited < delay {
			tier := all.pick(delay-waited, delay)
			waited += tier
			steps++
			require.LessOrEqual(t, steps, 14, "delay %s", delay)
		}
		late := waited - delay
		require.LessOrEqual(t, late, max(nowTier, delay/100), "delay %s", delay)
	}
	require.Len(t, all, 23)
}

func TestTiers_ChosenStepsTakeOneTopic(t *testing.T) {
	all := newTiers([]time.Duration{40 * time.Second, 0, 1500*time.Millisecond + time.Microsecond})
	for _, d := range []time.Duration{
		0, time.Second, 5 * time.Second, 10 * time.Second, 40 * time.Second, time.Minute,
		time.Hour,
	} {
		require.Equal(t, max(d, nowTier), all.pick(d, d))
	}
	require.Contains(t, all, 1501*time.Millisecond, "named delays are rounded up to whole milliseconds")
}
