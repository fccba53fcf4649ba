package docstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
)

func Example_deadLettersOfTheBroker() {
	dir, err := os.MkdirTemp("", "redrive-docs-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	// yours: amqp://..., postgres://...
	ctx, brokerURL, dlqURL := context.Background(), "mem://", "sqlite://"+filepath.Join(dir, "dead-letters.db")

	letters, err := dlq.Open(ctx, dlqURL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer letters.Close()
	broker, err := brokers.Open(ctx, brokerURL, brokers.WithDeadLetters(letters.DeadLetter))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	fmt.Println("open")
	// Output: open
}
