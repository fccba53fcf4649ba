//go:build !linux

package services

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Native servers need Debian; elsewhere the TEST_* variables name servers, for instance those of docker-compose.yml.
const nativeSupported = false

type account struct{}

func lookupAccount(string) (account, error)       { return account{}, nil }
func (account) prepare(*exec.Cmd, syscall.Signal) {}
func (account) own(...string) error               { return nil }
func tryLock(*os.File) error                      { return errors.ErrUnsupported }
func descendants(int) []int                       { return nil }
func alive(int) bool                              { return false }
