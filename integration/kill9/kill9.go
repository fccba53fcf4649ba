// Package kill9 starts the test program as processes that kill themselves with SIGKILL at a certain point of their
// work, which a kill from outside would hardly ever hit.
package kill9

import (
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// dies is the environment variable with the point at which a process dies.
const dies = "REDRIVE_TEST_DIES"

// times is how often a process reaches that point before it dies there.
const times = 5

// Start runs the test program with additional environment variables, from which its TestMain knows what to do. It dies
// when it reaches that point for the fifth time, or never if the point is empty. It is killed at the end of the test,
// unless the test has waited for it.
func Start(t *testing.T, where string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := Command(t, where, env...)
	require.NoError(t, cmd.Start())
	return cmd
}

// Command returns the command that [Start] starts, for tests that read its output.
func Command(t *testing.T, where string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // G702: this very program
	cmd.Env = append(append(os.Environ(), env...), dies+"="+where)
	cmd.Stderr = os.Stderr
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
		}
	})
	return cmd
}

// Until calls Start and waits until the process has died at that point.
func Until(t *testing.T, where string, env ...string) {
	t.Helper()
	require.ErrorContains(t, Start(t, where, env...).Wait(), "killed", "the process did not die %s", where)
}

var passed atomic.Int32

// At marks a point. It does not return in a process that dies there. It is safe for concurrent use.
func At(where string) {
	if os.Getenv(dies) == where && passed.Add(1) == times {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
