// Package natstest tests brokers/nats on real NATS servers, which run from the Go module in processes that tests kill.
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
	// These tests mostly wait, and Go's default is one per core.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	services.Main(m)
}
