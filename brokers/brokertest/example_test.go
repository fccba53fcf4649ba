package brokertest_test

import (
	"os"
	"testing"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
)

// A driver's test runs the suite against its server.
func ExampleRun() {
	testConformance := func(t *testing.T) {
		t.Helper()
		serverURL := os.Getenv("TEST_SERVER_URL")
		brokertest.Run(t, brokertest.Harness{
			Factor: 0.05, // ten seconds of a timeline take half a second
			Backend: func(t *testing.T) brokertest.Backend {
				t.Helper()
				return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
					cfg.URL = serverURL
					return brokers.OpenConfig(t.Context(), cfg)
				}}
			},
		})
	}
	_ = testConformance // func TestConformance in the driver's package
}
