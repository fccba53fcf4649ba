package idempotency_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/storetest"
)

func TestMemory_Conformance(t *testing.T) {
	storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.NewMemory() })
}

// Expired records take no memory, whether they are looked up or not.
func TestMemory_ForgetsExpiredMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := idempotency.NewMemory()
		ctx := context.Background()
		for i := range 5000 {
			key := idempotency.Key{Consumer: "c", MessageID: time.Duration(i).String()}
			_, err := s.Claim(ctx, key, 1, time.Minute)
			require.NoError(t, err)
			require.NoError(t, s.Complete(ctx, key, 1, nil, time.Second))
			time.Sleep(time.Millisecond) // virtual
			synctest.Wait()
		}
		require.LessOrEqual(t, s.Len(), 1001)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, s.Len())
	})
}
