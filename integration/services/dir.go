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

// A server's directory holds a file that our process keeps locked. One whose lock is free belongs to a process that was
// killed before it could clean up, and the next start removes it: a MariaDB alone leaves 150 MB behind.
const lockFile = "lock"

// locks are the lock files of our directories, by directory.
var locks sync.Map

// newDir makes a server's directory and gives it to the account.
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

// removeDir removes a directory that newDir made. A killed server's helpers may write for another moment, so it tries
// again.
func removeDir(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	err := poll(ctx, func() error { return os.RemoveAll(dir) })
	if lock, ok := locks.LoadAndDelete(dir); ok {
		err = errors.Join(err, lock.(*os.File).Close())
	}
	return err
}

// sweep removes the directories of dead processes. It does its best: a directory that it cannot remove stays.
func sweep() {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "redrive-*", lockFile))
	if err != nil {
		return
	}
	for _, path := range found {
		// A new one may be between its creation and its lock.
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
