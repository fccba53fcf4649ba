// Package chaos_test runs a service on real brokers while everything around it fails, and checks that every published
// message was handled or dead-lettered.
//
//	make chaos                                  # each fault ten times, on each broker
//	go test ./chaos -run TestChaos/RabbitMQ -chaos.rounds 100 -chaos.seed 42
package chaos_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the workers.
func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		os.Exit(worker(url, os.Getenv(workerLedger)))
	}
	if err := flag.Set("test.parallel", "5"); err != nil { // all brokers in parallel
		panic(err)
	}
	code := m.Run()
	if err := errors.Join(services.CloseShared()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
