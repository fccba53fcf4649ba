package services

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const nativeSupported = true

// account is the user of a server: that of its package if we are root, otherwise our own. PostgreSQL refuses to run as
// root, and none of the servers should.
type account struct {
	name     string
	uid, gid int
	switched bool
}

func lookupAccount(name string) (account, error) {
	if os.Geteuid() != 0 {
		return account{name: "", uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return account{}, err
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return account{}, fmt.Errorf("user %s: %w", name, err)
	}
	return account{name: name, uid: uid, gid: gid, switched: true}, nil
}

// prepare makes cmd run as the account, in a separate process group (we handle a terminal's Ctrl-C), and get
// deathSignal when this process dies. A write beyond the file size limit fails instead of killing it, because it
// inherits our ignored signal.
func (a account) prepare(cmd *exec.Cmd, deathSignal syscall.Signal) {
	signal.Ignore(syscall.SIGXFSZ)
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: deathSignal}
	if a.switched {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)} //nolint:gosec // ids of the user database
	}
	cmd.SysProcAttr = attr
}

func (a account) own(paths ...string) error {
	if !a.switched {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, a.uid, a.gid); err != nil {
			return err
		}
	}
	return nil
}

// tryLock locks the file for as long as our process has it open, or fails if another process has locked it.
func tryLock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

func descendants(pid int) []int {
	var all []int
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(children)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, found := strings.Cut(string(stat), ") ") // pid (name) state ...
	return found && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// cpuTime returns the processor time that a process has used, see clock_getcpuclockid(3).
func cpuTime(pid int) time.Duration {
	var used unix.Timespec
	_ = unix.ClockGettime(int32(^pid<<3|2), &used) //nolint:gosec // G115: process ids are small; none after its end
	return time.Duration(used.Nano())
}
