package rabbitmq_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
)

// spent is the user and system processor time of this process and of the broker, a measure of cost that is also valid
// on a busy machine.
type spent struct {
	here, broker time.Duration
	messages     int
}

func (s *spent) add(more spent, messages int) {
	s.here += more.here
	s.broker += more.broker
	s.messages += messages
}

func (s spent) since(before spent) spent {
	return spent{here: s.here - before.here, broker: s.broker - before.broker}
}

func micros(d time.Duration, messages int) float64 {
	return float64(d.Microseconds()) / float64(max(messages, 1))
}

// usage returns the processor time that both processes have used so far.
func (a *arena) usage() spent {
	a.Helper()
	var own syscall.Rusage
	require.NoError(a, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	s := spent{here: time.Duration(own.Utime.Nano() + own.Stime.Nano())}
	if a.broker != 0 {
		s.broker = a.processTime(a.broker)
	}
	return s
}

// processTime reads a process's processor time in ticks of 10 ms, the 14th and 15th fields of its stat file: see
// proc(5).
func (a *arena) processTime(pid int) time.Duration {
	a.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(a, err)
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // from the third on
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		require.NoError(a, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
