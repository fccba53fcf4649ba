//go:build !linux

package payload

import (
	"os"
	"runtime"
	"time"
)

// limitMemory ends the process soon after it exceeds the limit: no limit of the system counts what Go uses rather than
// reserves.
func limitMemory(bytes uint64) {
	go func() {
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.HeapSys-m.HeapReleased > bytes {
				os.Exit(1)
			}
			time.Sleep(10 * time.Millisecond) // the process has nothing else to wait for
		}
	}()
}
