package collector_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test leaves a goroutine behind. The Kafka client's metrics start one for the life of the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}
