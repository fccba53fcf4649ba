package collector_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
)

// A service in another language left a message in its error queue. It is collected, examined, and sent back.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	letters, err := dlq.Open(context.Background(), filepath.Join(dir, "dead.db"),
		dlq.WithoutSpool(), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = letters.Close() }()
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = broker.Close() }()

	sales := broker.Subscriber(brokers.WithGroup("Sales")) // the consumer that failed
	if _, err := sales.Subscribe(context.Background(), "Sales"); err != nil {
		fmt.Println(err)
		return
	}
	if err := sales.Close(); err != nil {
		fmt.Println(err)
		return
	}
	failed := message.NewMessage("7f3c", []byte(`{"order":1}`))
	failed.Metadata = message.Metadata{
		"NServiceBus.FailedQ":                     "Sales",
		"NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
		"NServiceBus.ExceptionInfo.Message":       "The bank did not answer",
		"NServiceBus.EnclosedMessageTypes":        "Sales.Pay",
	}
	if err := broker.Publisher().Publish("error", failed); err != nil {
		fmt.Println(err)
		return
	}

	c, err := collector.New(collector.Config{
		Sink:    letters,
		Sources: []collector.Source{{Broker: "main", Topic: "error", Subscriber: broker.Subscriber()}},
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	go func() {
		for ctx.Err() == nil && c.Stats()[0].Collected == 0 {
			time.Sleep(time.Millisecond) // real time: an example as a program writes it
		}
		cancel()
	}()
	if err := c.Run(ctx); err != nil {
		fmt.Println(err)
		return
	}

	router, err := collector.NewRouter(collector.RouterConfig{
		Store:   letters.Store(),
		Targets: []collector.Target{{Name: "main", Scheme: memory.Scheme, Redriver: broker}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	manager := letters.Manager(router)
	entry, err := manager.Get(context.Background(), 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(entry.Origin.Consumer, entry.ErrorClass, entry.ErrorMessage)
	if _, err := manager.Redrive(context.Background(), 1, dlq.By{Actor: "ana", Note: "the bank is back"}); err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range broker.Peek("Sales", "Sales") {
		fmt.Println(string(m.Payload), m.Metadata["NServiceBus.EnclosedMessageTypes"],
			m.Metadata["NServiceBus.FailedQ"] == "")
	}
	// Output:
	// Sales System.TimeoutException The bank did not answer
	// {"order":1} Sales.Pay true
}
