package main

import (
	"os"
	"testing"
)

// TestMain lets the servers of tests run their expressions in a child process, which is this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == evaluatorName {
		main()
	}
	os.Exit(m.Run())
}
