// Command orders is the main example: it reads orders, charges them, books loyalty points, and shows what happens to
// those that fail. It needs only Go:
//
//	go run ./examples/orders
//
// It reads orders.ndjson alongside this file (or the file given, or standard input for "-"), sends every line through a
// broker to two consumers, and prints a ledger that must balance. BROKER_URL and DLQ_URL choose the broker and the
// store of the dead letters; the code does not change. See wire.go for what a service has to write.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"time"

	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/examples/internal/patience"
)

func main() { demo.Main(run) }

type settings struct {
	demo.Settings
	redrive bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{Settings: demo.Settings{Speed: 20, Concurrency: 32}}
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&s.redrive, "redrive", false,
		"the acquirer is back: redrive the orders that gave up on it, and read no input")
	err := s.Parse(flags, args, "orders, one a line", func() error { return nil })
	return s, err
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	if err != nil {
		return demo.Usage(stderr, "orders", err)
	}
	shop, err := open(ctx, s, demo.Logger(stderr, s.Verbose))
	if err != nil {
		return demo.Exit(stderr, "orders", false, err)
	}
	work := func(ctx context.Context) error { return shop.publishAll(ctx, s.Input, stdin) }
	if s.redrive {
		work = shop.redriveExhausted
	}
	started := time.Now()
	err = demo.Serve(ctx, shop.router, shop.ledger, s.Patience, work)
	patience.Spool(ctx, s.Patience, shop.letters) // the report counts what is in the store
	balanced := shop.report(context.WithoutCancel(ctx), stdout, time.Since(started), s)
	return demo.Exit(stderr, "orders", balanced, errors.Join(err, shop.close()))
}
