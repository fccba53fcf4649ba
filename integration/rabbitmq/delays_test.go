package rabbitmq_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Delays are never early. First deliveries, what the error asks for (Retry-After) and what the policy names are late by
// at most 1 % or 100 ms, jittered ones by at most a quarter.
//
// It does not run in parallel: it is about time.
func TestDelays_Accuracy(t *testing.T) {
	const n = 150
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	anyDelay := func() time.Duration { return time.Duration(random.IntN(4000)) * time.Millisecond }
	exact := func(d time.Duration) time.Duration { return max(d/100, 100*time.Millisecond) }
	quarter := func(d time.Duration) time.Duration { return max(d/4, 100*time.Millisecond) }

	for name, tc := range map[string]struct {
		delay    func() time.Duration
		first    bool
		settings []func(*brokers.Config)
		late     func(time.Duration) time.Duration
	}{
		"first delivery, any": {delay: anyDelay, first: true, late: exact},
		"first delivery, named": {
			delay: func() time.Duration { return 1500 * time.Millisecond }, first: true, late: exact,
			settings: []func(*brokers.Config){delays(1500 * time.Millisecond), params("grid", "false")},
		},
		"retry, named": {
			delay:    func() time.Duration { return 1500 * time.Millisecond },
			settings: []func(*brokers.Config){delays(1500 * time.Millisecond), params("grid", "false")}, late: exact,
		},
		"Retry-After": {delay: anyDelay, late: exact},
		"jittered": {
			delay:    func() time.Duration { return time.Second + time.Duration(random.IntN(3000))*time.Millisecond },
			settings: []func(*brokers.Config){params("tolerance", "25")}, late: quarter,
		},
		"classic": {
			delay: anyDelay, late: exact,
			settings: []func(*brokers.Config){params("queue-type", "classic", "retry-queue-type", "classic")},
		},
	} {
		settings := append(tc.settings, func(c *brokers.Config) { c.Concurrency = 32 })
		wanted := make([]time.Duration, n)
		for i := range wanted {
			wanted[i] = tc.delay()
		}
		t.Run(name, func(t *testing.T) {
			url := services.SharedRabbitMQ(t).VHost(t)
			b := openBroker(t, url, settings...)
			var mu sync.Mutex
			from := make([]time.Time, n)
			since := func(i int) time.Time {
				mu.Lock()
				defer mu.Unlock()
				return from[i]
			}
			start := func(i int) {
				mu.Lock()
				defer mu.Unlock()
				from[i] = time.Now()
			}
			type arrival struct {
				i    int
				took time.Duration
			}
			came := make(chan arrival, n)
			serve(t, b, "orders", middleware.Config{}, func(m *message.Message) error {
				now := time.Now()
				i, err := strconv.Atoi(m.UUID)
				require.NoError(t, err)
				a, _ := middleware.AttemptFrom(m.Context())
				if !tc.first && a.Number == 1 {
					start(i)
					return middleware.RetryAfter(errDown, wanted[i])
				}
				came <- arrival{i, now.Sub(since(i))}
				return nil
			})
			pub := b.Publisher()
			warm := message.NewMessage("warm", nil) // declares the delay queues of first deliveries
			if tc.first {
				envelope.SetDelay(warm, 24*time.Hour)
				require.NoError(t, pub.Publish("orders", warm))
			}
			spread(8, n, func(i int) {
				m := message.NewMessage(strconv.Itoa(i), []byte("x"))
				if tc.first {
					start(i)
					envelope.SetDelay(m, wanted[i])
				}
				require.NoError(t, pub.Publish("orders", m))
			})
			late := make([]time.Duration, 0, n)
			beyond := 0
			for range n {
				var a arrival
				select {
				case a = <-came:
				case <-time.After(patience):
					require.FailNow(t, "messages are missing", "%d of %d", len(late), n)
				}
				require.GreaterOrEqual(t, a.took, wanted[a.i], "early")
				late = append(late, a.took-wanted[a.i])
				if a.took-wanted[a.i] > tc.late(wanted[a.i]) {
					beyond++
				}
			}
			slices.Sort(late)
			t.Logf("late: p50 %s, p99 %s, most %s", late[n/2], late[n*99/100], late[n-1])
			// The promise is for a broker that is not overloaded, and tests share this one and its two cores.
			require.LessOrEqual(t, beyond, n/20, "later than promised")
			require.LessOrEqual(t, late[n-1], tc.late(4*time.Second)+3*busy)
		})
	}
}

// The longest delay there is.
func TestDelays_ThirtyDaysIsTheLongest(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()))
	origin := envelope.Origin{Topic: "orders", Consumer: "orders"}
	require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
	require.NoError(t, b.Reschedule(t.Context(), origin, newMessage("x"), 30*24*time.Hour))
	require.ErrorIs(t, b.Reschedule(t.Context(), origin, newMessage("x"), 31*24*time.Hour), brokers.ErrUnsupported)
	require.Equal(t, 30*24*time.Hour, b.Capabilities().MaxDelay)
}
