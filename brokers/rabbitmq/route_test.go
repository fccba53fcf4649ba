package rabbitmq

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
)

// walk returns how long a delay takes in the queues of l, and through how many queues it passes.
func walk(t *testing.T, l driver.Steps, delay time.Duration) (waited time.Duration, steps int) {
	t.Helper()
	for rest := delay; rest > 0; steps++ {
		step, left := nextStep(l, rest)
		waited += step
		require.Less(t, left, rest)
		rest = left
	}
	return waited, steps
}

func TestLadder_NeverEarlyAndRarelyLate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l := delaySteps([]time.Duration{time.Second, 7 * time.Second}, true)
	for range 20_000 {
		delay := time.Duration(random.Int64N(int64(30*24*time.Hour))) >> random.IntN(32)
		waited, steps := walk(t, l, delay)
		require.GreaterOrEqual(t, waited, delay)
		require.LessOrEqual(t, waited-delay, max(delay/100, 100*time.Millisecond))
		require.LessOrEqual(t, steps, 16+int(delay/(14*time.Hour)), "%s", delay)
	}
}

func TestLadder_NamedDelaysWaitOnce(t *testing.T) {
	named := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 70 * time.Minute}
	l := delaySteps(named, true)
	for _, delay := range named {
		step, rest := nextStep(l, delay)
		require.Equal(t, delay, step)
		require.Zero(t, rest)
	}
}

func TestLadder_Steps(t *testing.T) {
	require.Len(t, delaySteps(nil, true), 21)
	require.Equal(t, driver.Steps{2 * time.Millisecond, time.Second},
		delaySteps([]time.Duration{time.Second, 0, 1500 * time.Microsecond, time.Second}, false))
	step, rest := nextStep(delaySteps(nil, false), time.Second)
	require.Zero(t, step)
	require.Equal(t, time.Second, rest)
}
