// Command orders is the main job: it reads orders, charges them, books loyalty points, and shows what happens to the
// ones that fail. It needs nothing but Go:
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
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/drivers"
	"github.com/redrive-go/redrive/examples/internal/patience"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes: 0 when the ledger balances, 1 when it does not or something failed, 2 for a wrong command line.
const (
	exitBalanced = 0
	exitFailed   = 1
	exitUsage    = 2
)

type settings struct {
	input       string
	brokerURL   string
	dlqURL      string
	speed       float64
	concurrency int
	patience    time.Duration
	redrive     bool
	verbose     bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{brokerURL: os.Getenv("BROKER_URL"), dlqURL: os.Getenv("DLQ_URL")}
	flags := flag.NewFlagSet("orders", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Float64Var(&s.speed, "speed", 20, "divide every delay by this; 1 is real time")
	flags.IntVar(&s.concurrency, "concurrency", 32, "handlers at once, for each of the two consumers")
	flags.DurationVar(&s.patience, "patience", 2*time.Minute, "give up when no message has got any further for this long")
	flags.BoolVar(&s.redrive, "redrive", false,
		"the acquirer is back: redrive the orders that gave up on it, and read no input")
	flags.BoolVar(&s.verbose, "v", false, "log every decision of the pipeline to standard error")
	flags.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: orders [flags] [FILE | -]     reads examples/orders/orders.ndjson by default")
		_, _ = fmt.Fprintln(stderr, "       BROKER_URL (default mem://) and DLQ_URL (default "+
			"sqlite:orders-dead-letters.db) choose broker and store")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	var faults []error
	if s.speed <= 0 {
		faults = append(faults, fmt.Errorf("-speed %g: must be positive; 1 is real time", s.speed))
	}
	if s.concurrency < 1 {
		faults = append(faults, fmt.Errorf("-concurrency %d: must be at least 1", s.concurrency))
	}
	if flags.NArg() > 1 {
		faults = append(faults, fmt.Errorf("%d input files: give one, or - for standard input", flags.NArg()))
	}
	s.input = flags.Arg(0)
	if s.brokerURL == "" {
		s.brokerURL = "mem://"
	}
	if s.dlqURL == "" {
		s.dlqURL = "sqlite:orders-dead-letters.db"
	}
	faults = append(faults, drivers.Check(s.brokerURL, s.dlqURL))
	return s, errors.Join(faults...)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitBalanced
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "orders:", err)
		return exitUsage
	}
	// Decisions are log lines in a service; here they would hide the ledger.
	level := slog.LevelError + 8
	if s.verbose {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level, ReplaceAttr: envelope.LevelName}))

	shop, err := open(ctx, s, logger)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "orders:", err)
		return exitFailed
	}
	work := func(ctx context.Context) error { return shop.publishAll(ctx, s.input, stdin) }
	if s.redrive {
		work = shop.redriveExhausted
	}
	started := time.Now()
	err = shop.serve(ctx, s.patience, work, newProgress(stderr, shop.ledger))
	patience.Spool(ctx, s.patience, shop.letters) // the report counts what is in the store
	balanced := shop.report(context.WithoutCancel(ctx), stdout, time.Since(started), s)
	if err = errors.Join(err, shop.close()); err != nil {
		_, _ = fmt.Fprintln(stderr, "orders:", err)
	}
	if err != nil || !balanced {
		return exitFailed
	}
	return exitBalanced
}
