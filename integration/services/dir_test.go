package services

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSweep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ours, err := newDir("ours", account{})
	require.NoError(t, err)
	dead, err := newDir("dead", account{})
	require.NoError(t, err)
	lock, _ := locks.LoadAndDelete(dead)
	require.NoError(t, lock.(*os.File).Close()) // as the kernel does when a process dies
	foreign := filepath.Join(os.TempDir(), "redrive-foreign-1")
	require.NoError(t, os.Mkdir(foreign, 0o700))

	sweep()
	require.DirExists(t, dead, "young")

	hourAgo := time.Now().Add(-time.Hour)
	for _, dir := range []string{ours, dead} {
		require.NoError(t, os.Chtimes(filepath.Join(dir, lockFile), hourAgo, hourAgo))
	}
	sweep()
	require.DirExists(t, ours)
	require.NoDirExists(t, dead)
	require.DirExists(t, foreign, "not one of ours: no lock file")

	require.NoError(t, removeDir(ours))
	require.NoDirExists(t, ours)
}
