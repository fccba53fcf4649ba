package middleware_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/middleware"
)

const longest = time.Duration(math.MaxInt64)

func delays(b middleware.Backoff, n int, original time.Duration) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = b.Delay(i+1, original)
	}
	return out
}

func TestBackoff_Delays(t *testing.T) {
	s := time.Second
	tests := map[string]struct {
		backoff  middleware.Backoff
		original time.Duration
		want     []time.Duration
	}{
		"B3 from the original delay": {
			middleware.FromOriginalDelay(s), 10 * s,
			[]time.Duration{10 * s, 20 * s, 40 * s, 80 * s},
		},
		"B3 fallback without original delay":  {middleware.FromOriginalDelay(s), 0, []time.Duration{s, 2 * s, 4 * s}},
		"B3 fallback for a negative original": {middleware.FromOriginalDelay(s), -5 * s, []time.Duration{s, 2 * s}},
		"B3 odd nanoseconds stay exact": {
			middleware.FromOriginalDelay(s), 1<<55 + 1,
			[]time.Duration{1<<55 + 1, 1<<56 + 2},
		},
		"D19 list repeats its last": {
			middleware.Steps(s, 5*s, 60*s), 10 * s,
			[]time.Duration{s, 5 * s, 60 * s, 60 * s, 60 * s},
		},
		"D19 scalar":              {middleware.Constant(30 * s), 0, []time.Duration{30 * s, 30 * s, 30 * s}},
		"D19 list with immediate": {middleware.Steps(0, s, 5*s), 0, []time.Duration{0, s, 5 * s, 5 * s}},
		"A none":                  {middleware.None(), 10 * s, []time.Duration{0, 0, 0}},
		"factor 1.5 is not truncated": {
			middleware.Exponential(10*s, 1.5), time.Hour,
			[]time.Duration{10 * s, 15 * s, 22500 * time.Millisecond},
		},
		"factor 1 is constant": {middleware.Exponential(s, 1), 0, []time.Duration{s, s, s}},
		"cap": {
			middleware.WithCap(middleware.FromOriginalDelay(s), 25*s), 10 * s,
			[]time.Duration{10 * s, 20 * s, 25 * s, 25 * s},
		},
		"a function": {middleware.BackoffFunc(func(retry int, _ time.Duration) time.Duration {
			return time.Duration(retry) * s
		}), 0, []time.Duration{s, 2 * s}},
		"negative values never leave a policy": {middleware.Steps(-s), 0, []time.Duration{0, 0}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, tt.want, delays(tt.backoff, len(tt.want), tt.original))
		})
	}
}

// 10 s * 2^30 is a negative time.Duration and 10 s * 2^62 is zero: a retry at once, forever.
func TestBackoff_Saturates(t *testing.T) {
	b := middleware.FromOriginalDelay(time.Second)
	for _, retry := range []int{31, 32, 63, 64, 1000, math.MaxInt} {
		require.Equal(t, longest, b.Delay(retry, 10*time.Second), "retry %d", retry)
	}
	require.Equal(t, longest, middleware.Exponential(time.Second, 1e300).Delay(math.MaxInt, 0))
	require.Equal(t, time.Hour, middleware.WithCap(b, time.Hour).Delay(math.MaxInt, 10*time.Second))
	for _, retry := range []int{0, -1, math.MinInt} {
		require.Equal(t, 10*time.Second, b.Delay(retry, 10*time.Second), "retry %d counts as 1", retry)
		require.Equal(t, time.Second, middleware.Steps(time.Second).Delay(retry, 0))
	}
}

func anyBackoff(t *rapid.T) middleware.Backoff {
	duration := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64Min(0).Draw(t, "d")) })
	var b middleware.Backoff
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		b = middleware.FromOriginalDelay(duration.Draw(t, "fallback"))
	case 1:
		b = middleware.Exponential(duration.Draw(t, "base"), rapid.Float64Range(1, 1e6).Draw(t, "factor"))
	case 2:
		b = middleware.Steps(rapid.SliceOfN(duration, 1, 8).Draw(t, "steps")...)
	case 3:
		b = middleware.Constant(duration.Draw(t, "constant"))
	default:
		b = middleware.None()
	}
	return b
}

func TestBackoff_Properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		retry := rapid.Int().Draw(t, "retry")
		original := time.Duration(rapid.Int64().Draw(t, "original"))
		limit := time.Duration(rapid.Int64Range(1, math.MaxInt64).Draw(t, "limit"))

		d := b.Delay(retry, original)
		require.GreaterOrEqual(t, d, time.Duration(0))
		require.Equal(t, d, b.Delay(retry, original), "pure")
		require.LessOrEqual(t, middleware.WithCap(b, limit).Delay(retry, original), limit)

		full := middleware.WithJitter(b, middleware.FullJitter).Delay(retry, original)
		require.GreaterOrEqual(t, full, time.Duration(0))
		require.LessOrEqual(t, full, d)
		equal := middleware.WithJitter(b, middleware.EqualJitter).Delay(retry, original)
		require.GreaterOrEqual(t, equal, d/2)
		require.LessOrEqual(t, equal, d)
	})
}

func TestBackoff_ExponentialNeverShrinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := middleware.FromOriginalDelay(time.Duration(rapid.Int64Min(0).Draw(t, "fallback")))
		original := time.Duration(rapid.Int64Min(0).Draw(t, "original"))
		retry := rapid.IntRange(1, 1_000_000).Draw(t, "retry")
		require.LessOrEqual(t, b.Delay(retry, original), b.Delay(retry+1, original))
	})
}

func TestBackoff_JitterSpreads(t *testing.T) {
	b := middleware.WithJitter(middleware.Constant(time.Hour), middleware.FullJitter)
	seen := map[time.Duration]bool{}
	for range 100 {
		seen[b.Delay(1, 0)] = true
	}
	require.Greater(t, len(seen), 90)
}

func TestTimeline(t *testing.T) {
	s := time.Second
	require.Equal(t, []time.Duration{0, 10 * s, 30 * s, 70 * s},
		middleware.Timeline(middleware.FromOriginalDelay(s), middleware.Retries(3), 10*s), "B")
	require.Equal(t, []time.Duration{0, s, 6 * s},
		middleware.Timeline(middleware.Steps(s, 5*s, 60*s), middleware.Tries(3), 0), "D20")
	require.Equal(t, []time.Duration{0, 5 * s, 10 * s, 15 * s},
		middleware.Timeline(middleware.Constant(5*s), middleware.Cycles(3), 0), "E")
	require.Equal(t, []time.Duration{0, longest, longest}, middleware.Timeline(middleware.Constant(longest), 3, 0))
	require.Empty(t, middleware.Timeline(middleware.None(), -1, 0))
}

func TestLimits(t *testing.T) {
	require.Equal(t, 5, middleware.Tries(5), "A: maxRetries 5 is 5 runs")
	require.Equal(t, 4, middleware.Retries(3), "B: MAX_RETRIES 3 is 4 runs")
	require.Equal(t, 4, middleware.Cycles(3), "E: 3 cycles are 4 runs")
	require.Equal(t, 1, middleware.Tries(0), "0 would mean the default of 4")
	require.Equal(t, 1, middleware.Retries(0))
	require.Equal(t, math.MaxInt, middleware.Retries(math.MaxInt))
	require.Negative(t, middleware.Retries(-1), "left for New to refuse")
}

// "explain" prints backoffs as words.
func TestBackoff_String(t *testing.T) {
	for want, b := range map[string]middleware.Backoff{
		"at once":  middleware.None(),
		"every 5s": middleware.Constant(5 * time.Second),
		"steps 1s, 5s, 1m0s, full jitter": middleware.WithJitter(middleware.Steps(time.Second, 5*time.Second, time.Minute),
			middleware.FullJitter),
		"original delay (or 1s) x2 for each retry, at most 1h0m0s": middleware.WithCap(
			middleware.FromOriginalDelay(time.Second), time.Hour),
		"2s x1.5 for each retry, equal jitter": middleware.WithJitter(
			middleware.Exponential(2*time.Second, 1.5), middleware.EqualJitter),
	} {
		require.Equal(t, want, fmt.Sprint(b))
	}
}
