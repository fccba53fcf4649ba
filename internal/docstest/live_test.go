package docstest

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/middleware"
)

// The wiring in docs/dashboard.md runs, and the service appears on the live screen.
func TestDashboard_ServiceReports(t *testing.T) {
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"), dlq.WithoutSpool())
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()
	broker, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, broker.Close()) }()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- serve(ctx, router, broker, letters, func(*message.Message) error { return nil }) }()
	<-router.Running()
	for {
		services, err := letters.Manager(broker).Services(ctx, time.Now().Add(-time.Hour))
		require.NoError(t, err)
		if len(services) == 1 {
			require.Equal(t, "billing", services[0].Name)
			require.True(t, services[0].Processes[0].CanPause)
			break
		}
	}
	stop()
	require.NoError(t, <-ran)
}

func serve(
	ctx context.Context, router *message.Router, broker brokers.Broker, letters *dlq.Letters,
	charge message.NoPublishHandlerFunc,
) error {
	monitor, err := live.New(live.Config{Service: "billing", Store: letters.Store()})
	if err != nil {
		return err
	}
	pipeline, err := middleware.New(middleware.Config{Observer: monitor, Rescheduler: broker, DeadLetters: letters})
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("charge", "orders", monitor.Subscriber(broker.Subscriber()), charge)
	go func() { _ = monitor.Run(ctx) }()
	return router.Run(ctx)
}
