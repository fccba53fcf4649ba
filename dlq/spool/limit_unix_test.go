//go:build unix

package spool_test

import (
	"os/signal"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// limitFileSize makes writes fail beyond a size of each file, after part of the last write, like a full disk.
func limitFileSize(t *testing.T, bytes string) {
	t.Helper()
	n, err := strconv.ParseUint(bytes, 10, 64)
	require.NoError(t, err)
	signal.Ignore(syscall.SIGXFSZ)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: n, Max: n}))
}
