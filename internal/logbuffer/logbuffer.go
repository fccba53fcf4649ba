// Package logbuffer captures output that tests read while the program under test still writes it: logs, and the output
// of processes.
package logbuffer

import (
	"bytes"
	"sync"
)

// Buffer keeps everything written to it. Any number of goroutines may write and read it at once; its zero value is
// empty.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write adds p. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what has been written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
