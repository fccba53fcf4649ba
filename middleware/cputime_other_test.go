//go:build !unix

package middleware_test

import "time"

var started = time.Now()

// cpuTime falls back to wall time on this system.
func cpuTime() time.Duration { return time.Since(started) }
