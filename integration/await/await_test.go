package await

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	for name, tc := range map[string]struct {
		far  func(since time.Duration) int // of 3
		took time.Duration                 // at least
		ok   bool
	}{
		"done at the first call": {func(time.Duration) int { return 3 }, 0, true},
		"slow, but making progress": {
			func(since time.Duration) int { return int(since / (Patience - time.Second)) },
			3 * (Patience - time.Second), true,
		},
		"no progress": {func(time.Duration) int { return 0 }, Patience, false},
		"progress that stops": {
			func(since time.Duration) int { return min(1, int(since/time.Second)) },
			time.Second + Patience, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				_, ok := progress(func() (int, bool) {
					far := tc.far(time.Since(began))
					return far, far >= 3
				})
				require.Equal(t, tc.ok, ok)
				require.GreaterOrEqual(t, time.Since(began), tc.took)
				require.Less(t, time.Since(began), tc.took+time.Second)
			})
		})
	}
}
