//go:build unix

package middleware_test

import (
	"syscall"
	"time"
)

// cpuTime is the processor time of this process so far, garbage collection included. On a busy machine it is steadier
// than wall time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
