// Package collector_test tests package dlq/collector on a real RabbitMQ and a real Kafka with services that do not use
// this module.
package collector_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the SQL driver

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"    // kafka
	_ "github.com/redrive-go/redrive/brokers/rabbitmq" // amqp
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/config"
)

func TestMain(m *testing.M) { services.Main(m) }

func newLetters(t *testing.T) *dlq.Letters {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dead.db")
	letters, err := dlq.Open(t.Context(), "sqlite:"+path+"?synchronous=normal", dlq.WithoutSpool(),
		dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	return letters
}

// operate opens a broker as redrive serve does.
func operate(t *testing.T, url string) (brokers.Broker, config.Broker) {
	t.Helper()
	b := config.Broker{Config: brokers.Config{URL: url, Group: config.DefaultGroup, Name: "redrive"}}
	operating := b.Operating()
	operating.Logger, operating.PublishTimeout = slog.New(slog.DiscardHandler), await.Patience
	broker, err := brokers.OpenConfig(t.Context(), operating)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	return broker, b
}

// start runs a collector until stop is called, or the test ends.
func start(t *testing.T, letters *dlq.Letters, sources ...collector.Source) (c *collector.Collector, stop func()) {
	t.Helper()
	c, err := collector.New(collector.Config{Sink: letters, Sources: sources, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err) // FailNow in a OnceFunc would panic, and end the other tests
		}
	})
	t.Cleanup(stop)
	return c, stop
}

func entries(t *testing.T, letters *dlq.Letters) []dlq.Entry {
	t.Helper()
	var all []dlq.Entry
	page := dlq.Page{Order: driver.OldestFirst, Limit: driver.MaxPage}
	for {
		list, err := letters.Store().List(t.Context(), dlq.Filter{}, page)
		require.NoError(t, err)
		all = append(all, list.Entries...)
		if page.After = list.Next; page.After == "" {
			return all
		}
	}
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	await.True(t, holds)
}
