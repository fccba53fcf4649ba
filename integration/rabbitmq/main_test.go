// Package rabbitmq_test tests brokers/rabbitmq on a real RabbitMQ.
package rabbitmq_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the process in which Watermill's suite restarts the broker.
func TestMain(m *testing.M) {
	if url := os.Getenv(restartAddress); url != "" {
		os.Exit(restart(url))
	}
	// These tests mostly wait. By default Go runs one at a time per core.
	if err := flag.Set("test.parallel", "10"); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := errors.Join(services.CloseShared(), closeSecond()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
