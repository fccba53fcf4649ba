package services

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Two test processes that run in parallel have two sources: a port that one has allocated, and that has no listener
// yet, is not allocated by the other.
func TestPortSource(t *testing.T) {
	var one, other portSource
	t.Cleanup(func() {
		for _, guard := range append(one.guards, other.guards...) {
			require.NoError(t, guard.Close())
		}
	})
	given := make(map[int]bool)
	for range 10 {
		for _, source := range []*portSource{&one, &other} {
			ports, err := source.take(blockSize) // always more than the rest of the block
			require.NoError(t, err)
			require.Len(t, ports, blockSize)
			for _, port := range ports {
				require.False(t, given[port], "port %d was allocated twice", port)
				require.Less(t, port, lastPort)
				given[port] = true
			}
		}
	}

	taken := one.ports[0]
	foreign, err := listen(taken)
	require.NoError(t, err)
	defer foreign.Close()
	ports, err := one.take(1)
	require.NoError(t, err)
	require.NotContains(t, ports, taken, "it is in use")
}
