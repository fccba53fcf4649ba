// Package kafkatest tests brokers/kafka on a real Apache Kafka.
package kafkatest

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/redrive-go/redrive/integration/services"
)

// TestMain is also the main function of the consumer processes that tests start and kill.
func TestMain(m *testing.M) {
	if url := os.Getenv(consumerURL); url != "" {
		os.Exit(consumerMain(context.Background(), url))
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	services.Main(m)
}
