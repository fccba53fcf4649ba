//go:build !linux

package services

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Servers are started natively only on Debian; elsewhere the TEST_* variables must name servers, for example those of
// docker-compose.yml.
const nativeSupported = false

type account struct{}

func lookupAccount(string) (account, error)       { return account{}, nil }
func (account) prepare(*exec.Cmd, syscall.Signal) {}
func (account) own(...string) error               { return nil }
func tryLock(*os.File) error                      { return errors.ErrUnsupported }
func descendants(int) []int                       { return nil }
func alive(int) bool                              { return false }
func cpuTime(int) time.Duration                   { return 0 }
