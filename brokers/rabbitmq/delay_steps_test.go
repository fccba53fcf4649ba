package rabbitmq

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/driver"
)

// walk returns how long a delay takes in the queues of l, and through how many queues it passes.
func walk(t *testing.T, l delaySteps, delay time.Duration) (waited time.Duration, steps int) {
	t.Helper()
	for rest := delay; rest > 0; steps++ {
		step, left := l.step(rest)
		waited += step
		require.Less(t, left, rest)
		rest = left
	}
	return waited, steps
}

func TestLadder_NeverEarlyAndRarelyLate(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	l := newDelaySteps([]time.Duration{time.Second, 7 * time.Second}, true, 1)
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
	l := newDelaySteps(named, true, 1)
	for _, delay := range named {
		step, rest := l.step(delay)
		require.Equal(t, delay, step)
		require.Zero(t, rest)
	}
}

func TestLadder_ToleranceSavesQueues(t *testing.T) {
	exact, loose := newDelaySteps(nil, true, 1), newDelaySteps(nil, true, 50)
	_, many := walk(t, exact, 45*time.Second)
	waited, few := walk(t, loose, 45*time.Second)
	require.Less(t, few, many)
	require.LessOrEqual(t, waited, 45*time.Second*5/4) // a quarter, as for jittered delays
}

func TestLadder_Steps(t *testing.T) {
	require.Len(t, newDelaySteps(nil, true, 1).steps, 21)
	require.Equal(t, driver.Steps{2 * time.Millisecond, time.Second},
		newDelaySteps([]time.Duration{time.Second, 0, 1500 * time.Microsecond, time.Second}, false, 1).steps)
	step, rest := newDelaySteps(nil, false, 1).step(time.Second)
	require.Zero(t, step)
	require.Equal(t, time.Second, rest)
}
