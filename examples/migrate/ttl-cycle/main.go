// The program of docs/migrate/ttl-cycle.md.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq" // amqp://
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("BROKER_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.TTLCycle("sme.sgp.workers")))
	if err != nil {
		return err
	}
	defer broker.Close()
	cfg := middleware.TTLCycle(3, 5*time.Second) // three cycles; an existing queue keeps its time to live
	cfg.Rescheduler, cfg.DeadLetters = broker, broker
	pipeline, err := middleware.New(cfg)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("dre", "sgp.fechamento.reabertura.notificacao.dre", broker.Subscriber(),
		envelope.Handle(notify))
	return router.Run(ctx)
}

type reopening struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

// notify returns an error where the original rejected the message.
func notify(_ context.Context, r reopening) error {
	if r.Email == "" {
		return errors.New("no address")
	}
	log.Printf("handled %s", r.ID)
	return nil
}
