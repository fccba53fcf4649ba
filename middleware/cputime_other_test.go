//go:build !unix

package middleware_test

import "time"

var started = time.Now()

// cpuTime is the time on the wall where there is no better one.
func cpuTime() time.Duration { return time.Since(started) }
