package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the SQL driver is the program's choice

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// serve starts a server with one dead letter. In production that is redrive serve.
func serve(ctx context.Context) (url string, end func(), err error) {
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		return "", nil, err
	}
	logger := slog.New(slog.DiscardHandler)
	letters, err := dlq.Open(ctx, "sqlite:"+filepath.Join(dir, "dead.db"), dlq.WithLogger(logger))
	if err != nil {
		return "", nil, err
	}
	broker := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
		return nil
	})
	runner, err := redrive.NewRunner(letters.Manager(broker), redrive.Config{})
	if err != nil {
		return "", nil, err
	}
	handler, err := dlqhttp.New(dlqhttp.Config{Manager: letters.Manager(broker), Runner: runner, Logger: logger})
	if err != nil {
		return "", nil, err
	}
	server := httptest.NewServer(handler)
	return server.URL, func() { server.Close(); _ = letters.Close(); _ = os.RemoveAll(dir) },
		letters.DeadLetter(ctx, &envelope.DeadLetter{
			Message: message.NewMessage("A-17", []byte(`{"amount":-5}`)), Reason: envelope.ReasonPermanent,
			Err: envelope.Error{Message: "the amount is negative"}, Handler: "charge",
			Origin: envelope.Origin{Topic: "orders", Consumer: "billing"}, Attempts: 1, At: time.Now(),
		})
}

func Example() {
	ctx := context.Background()
	url, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	c, err := client.New(client.Config{Server: url}) // and Token, unless the server is on this machine
	if err != nil {
		fmt.Println(err)
		return
	}
	for entry, err := range c.Entries(ctx, wire.Filter{Topic: "orders"}, wire.Page{}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(entry.ID, entry.Status, entry.ErrorMessage)
		entry, err = c.RedriveEntry(ctx, entry.ID, client.By{Note: "fixed in release 7"})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(entry.ID, entry.Status)
	}
	// Output:
	// 1 PENDING the amount is negative
	// 1 RETRYING
}
