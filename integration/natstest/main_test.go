// Package natstest proves brokers/nats on a real NATS server, the Go module itself in processes that are killed.
package natstest

import (
	"flag"
	"log/slog"
	"os"
	"testing"

	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the servers, and of the consumers that tests start and kill.
func TestMain(m *testing.M) {
	natsserver.Main()
	if url := os.Getenv(consumerURL); url != "" {
		os.Exit(consumerMain(url))
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// These tests wait more than they compute, and Go's default is one per core.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	services.Main(m)
}
