//go:build !windows && (!unix || solaris || illumos || aix)

package dlq

import "os"

// lockFile does nothing where the system has no lock that goes with its process: give each process a spool directory of its own.
func lockFile(*os.File) error { return nil }

func unlockFile(*os.File) error { return nil }
