// The program of docs/migrate/dead-letter-table.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib" // the table's database

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka" // kafka://
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // postgres://
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("BROKER_URL"), os.Getenv("DLQ_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, brokerURL, storeURL string) error {
	broker, err := brokers.Open(ctx, brokerURL)
	if err != nil {
		return err
	}
	defer broker.Close()
	letters, err := dlq.Open(ctx, storeURL, dlq.WithSource(source))
	if err != nil {
		return err
	}
	defer letters.Close()
	cfg := middleware.StoreOnly() // technical errors are retried, all others go to the table at once
	cfg.Rescheduler, cfg.DeadLetters = broker, letters
	pipeline, err := middleware.New(cfg)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	consume := broker.Subscriber(brokers.WithGroup("payroll")) // the group of the new consumers
	router.AddConsumerHandler("employees", "payroll-employees", consume, envelope.Handle(register))
	return router.Run(ctx)
}

type employee struct {
	ID  string `json:"id"`
	CPF string `json:"cpf"`
}

// register returns an error where the original inserted a row.
func register(_ context.Context, e employee) error {
	if e.CPF == "" {
		return middleware.Permanent(errors.New("Falha na validação: CPF inválido"))
	}
	log.Printf("handled %s", e.ID)
	return nil
}

// source fills source_table and source_id.
func source(e envelope.Envelope) (table, id string) {
	var data employee
	if json.Unmarshal(e.Data(), &data) != nil {
		return "", ""
	}
	return "employees", data.ID
}
