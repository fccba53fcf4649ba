package redrive_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test leaves a goroutine behind: writers, importers and connections end with Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
