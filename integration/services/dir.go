package services

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/redrive-go/redrive/integration/await"
)

// A server's directory has a file that our process keeps locked. If the lock is free, the process was killed before it
// could clean up, and the next start removes the directory: a single MariaDB leaves 150 MB behind.
const lockFile = "lock"

// locks are the lock files of our directories, by directory.
var locks sync.Map

// newDir creates a server's directory, owned by the account.
func newDir(name string, owner account) (string, error) {
	sweep()
	dir, err := os.MkdirTemp("", "redrive-"+name+"-")
	if err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, lockFile))
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	locks.Store(dir, lock)
	if err := errors.Join(tryLock(lock), owner.own(dir)); err != nil {
		return "", errors.Join(err, removeDir(dir))
	}
	return dir, nil
}

// removeDir removes a directory that newDir created. Helpers of a killed server may write for another moment, so it
// tries again.
func removeDir(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	err := poll(ctx, func() error { return os.RemoveAll(dir) })
	if lock, ok := locks.LoadAndDelete(dir); ok {
		err = errors.Join(err, lock.(*os.File).Close())
	}
	return err
}

// sweep removes the directories of dead processes if it can.
func sweep() {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "redrive-*", lockFile))
	if err != nil {
		return
	}
	for _, path := range found {
		// A new directory may not be locked yet.
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if tryLock(lock) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = lock.Close()
	}
}
