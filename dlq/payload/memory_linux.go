package payload

import "syscall"

// limitMemory makes an allocation beyond the limit end the process.
func limitMemory(bytes uint64) {
	_ = syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: bytes, Max: bytes})
}
