package dlqmetrics_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/envelope"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	metrics, err := dlqmetrics.New(dlqmetrics.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	letters, err := dlq.Open(ctx, "sqlite:"+filepath.Join(dir, "dead.db"),
		dlq.WithObserver(metrics), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer letters.Close()
	metrics.Watch(dlqmetrics.Sources{Letters: letters})
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(metrics)

	err = letters.DeadLetter(ctx, &envelope.DeadLetter{
		Message: message.NewMessage("A-17", []byte("order")), Reason: envelope.ReasonPermanent,
		Err: envelope.Error{Message: "no such customer"}, Handler: "charge",
		Origin: envelope.Origin{Topic: "orders", Consumer: "billing"}, Attempts: 1, At: time.Now(),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range families {
		if f.GetName() == "redrive_dlq_stored_total" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	// Output: redrive_dlq_stored_total 1
}
