package storetest_test

import (
	"testing"

	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/storetest"
)

// A test of a store runs the suite.
func ExampleRun() {
	testStore := func(t *testing.T) {
		t.Helper()
		storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.NewMemory() })
	}
	_ = testStore // func TestStore(t *testing.T) in your package
}
