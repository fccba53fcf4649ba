package services

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
)

// A starting server that is short of processor time gets on all the same.
func TestCPUTime(t *testing.T) {
	busy := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	require.NoError(t, busy.Start())
	defer func() {
		require.NoError(t, busy.Process.Kill())
		require.Error(t, busy.Wait())
	}()
	await.True(t, func() bool { return cpuTime(busy.Process.Pid) >= startStep })
}
