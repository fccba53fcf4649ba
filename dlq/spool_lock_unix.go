//go:build unix && !solaris && !illumos && !aix

package dlq

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile takes the file for this process. The lock goes with the process, however it ends.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) //nolint:gosec // a file descriptor
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrSpoolLocked
	}
	return err
}
