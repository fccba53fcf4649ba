// Package kill9 starts the test program again as processes that kill themselves with SIGKILL at a place of their work,
// which a kill from outside would hardly ever meet.
package kill9

import (
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// dies names the place where a process dies, for its environment.
const dies = "REDRIVE_TEST_DIES"

// times is how often a process comes by the place before it dies there.
const times = 5

// Start runs the test program again, with more environment, from which its TestMain knows what to do. It dies when it
// reaches a place for the fifth time, or nowhere when that is empty. The end of the test kills it, unless the test has
// waited for it.
func Start(t *testing.T, where string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := Command(t, where, env...)
	require.NoError(t, cmd.Start())
	return cmd
}

// Command is what [Start] starts, for a test that reads what it prints.
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

// Until is Start, and waits until the process has died where it was to.
func Until(t *testing.T, where string, env ...string) {
	t.Helper()
	require.ErrorContains(t, Start(t, where, env...).Wait(), "killed", "it was to die %s", where)
}

var passed atomic.Int32

// At is a place. It does not return in a process that dies there. It is safe for concurrent use.
func At(where string) {
	if os.Getenv(dies) == where && passed.Add(1) == times {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
