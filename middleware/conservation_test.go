package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// N in = N processed + N dead + N skipped, with handlers that fail in every way and ports that fail at random.
func TestPipeline_ConservesMessages(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { conserve(t, seed) })
		})
	}
}

func conserve(t *testing.T, seed uint64) {
	t.Helper()
	const messages = 200
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	dice := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n)
	}
	ends := map[string][]string{} // by message id
	end := func(id, how string) {
		mu.Lock()
		defer mu.Unlock()
		ends[id] = append(ends[id], how)
	}

	var h *harness
	flaky := func() error {
		if dice(3) == 0 {
			return errors.New("broker is down")
		}
		return nil
	}
	cfg := middleware.Config{
		MaxAttempts: 4,
		Backoff:     middleware.BackoffFunc(func(int, time.Duration) time.Duration { return time.Duration(dice(int(s))) }),
		Breaker:     &middleware.Breaker{Failures: 10, Delay: 5 * s},
		Logger:      quiet,
		Rescheduler: middleware.ReschedulerFunc(
			func(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
				if err := flaky(); err != nil {
					return err
				}
				return h.Reschedule(ctx, o, m, d)
			}),
		DeadLetters: middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
			if err := flaky(); err != nil {
				return err
			}
			end(d.Message.Metadata[envelope.KeyMessageID], "dead")
			return nil
		}),
	}
	cfg.Hooks.OnSkip = func(_ context.Context, p middleware.SkipParams) error {
		end(p.Message.Metadata[envelope.KeyMessageID], "skipped")
		return nil
	}
	h = newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
		clear(m.Payload)
		switch dice(9) {
		case 0:
			return nil, middleware.Permanent(errTimeout)
		case 1:
			return nil, middleware.Skip(errTimeout)
		case 2:
			return nil, middleware.Defer(errTimeout, s)
		case 3:
			panic("x")
		case 4:
			runtime.Goexit()
		case 5, 6:
			return nil, errTimeout
		}
		end(m.Metadata[envelope.KeyMessageID], "processed")
		return nil, nil
	})
	for i := range messages {
		m := order(t, envelope.ID(fmt.Sprintf("m-%d", i)))
		go h.deliver(m)
	}
	time.Sleep(24 * time.Hour) // virtual
	synctest.Wait()

	require.Len(t, ends, messages, "none is lost and none loops forever")
	for id, how := range ends {
		require.Len(t, how, 1, "%s came to its end more than once", id)
	}
}
