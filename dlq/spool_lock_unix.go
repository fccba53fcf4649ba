//go:build unix && !solaris && !illumos && !aix

package dlq

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes the file for this process. The lock goes with the process, however it ends.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrSpoolLocked
	}
	return err
}

// unlockFile gives the file back at once. Closing it alone would not, while a child process that is just being started still has a
// copy of the descriptor.
func unlockFile(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_UN)
}
