// Package demo has the parts that make the examples demonstrations instead of services: their command line, their
// input, delays that are shorter than real ones, and running a router until nothing more happens. A service does not
// need it.
package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/drivers"
	"github.com/redrive-go/redrive/examples/internal/patience"
	"github.com/redrive-go/redrive/middleware"
)

// Exit codes: all that was expected has happened, not all has or something failed, the command line is wrong.
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Main runs a demonstration until it has ended or the user interrupts it, and exits with its code.
func Main(run func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Usage returns the exit code for a command line that is wrong, or that only asks for help.
func Usage(stderr io.Writer, name string, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return ExitDone
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return ExitUsage
}

// Exit returns the exit code of a demonstration that has ended, and prints its error.
func Exit(stderr io.Writer, name string, done bool, err error) int {
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", name, err)
	}
	if err != nil || !done {
		return ExitFailed
	}
	return ExitDone
}

// Settings are the command line and the environment of a demonstration. Set the defaults of Speed and Concurrency.
type Settings struct {
	Input       string
	BrokerURL   string
	DLQURL      string
	Speed       float64
	Concurrency int
	Patience    time.Duration
	Verbose     bool
}

// Parse reads the arguments by flags, to which the caller has added its own, and the environment. input describes
// the input in the usage. It returns all faults at once, with those that check returns.
func (s *Settings) Parse(flags *flag.FlagSet, args []string, input string, check func() error) error {
	name := flags.Name()
	flags.Float64Var(&s.Speed, "speed", s.Speed, "divide every delay by this; 1 is real time")
	flags.IntVar(&s.Concurrency, "concurrency", s.Concurrency, "handlers at once, for each consumer")
	flags.DurationVar(&s.Patience, "patience", 2*time.Minute, "give up when nothing has got any further for this long")
	flags.BoolVar(&s.Verbose, "v", false, "log every decision of the pipeline to standard error")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(flags.Output(), "usage: %s [flags] [FILE | -]     %s; examples/%[1]s/%[1]s.ndjson by default\n"+
			"       BROKER_URL (default mem://) and DLQ_URL (default sqlite:%[1]s-dead-letters.db) choose broker and store\n",
			name, input)
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	faults := []error{check()}
	if s.Speed <= 0 {
		faults = append(faults, fmt.Errorf("-speed %g: must be positive; 1 is real time", s.Speed))
	}
	if s.Concurrency < 1 {
		faults = append(faults, fmt.Errorf("-concurrency %d: must be at least 1", s.Concurrency))
	}
	if flags.NArg() > 1 {
		faults = append(faults, fmt.Errorf("%d input files: give one, or - for standard input", flags.NArg()))
	}
	s.Input = flags.Arg(0)
	s.BrokerURL = cmp.Or(os.Getenv("BROKER_URL"), "mem://")
	s.DLQURL = cmp.Or(os.Getenv("DLQ_URL"), "sqlite:"+name+"-dead-letters.db")
	return errors.Join(append(faults, drivers.Check(s.BrokerURL, s.DLQURL))...)
}

// Logger logs every decision of a pipeline, or nothing: a service would log them, but here they would hide the report.
func Logger(w io.Writer, verbose bool) *slog.Logger {
	level := slog.LevelError + 8
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: envelope.LevelName}))
}

// Open opens the input: the named file, stdin for "-", and file if there is no name.
func Open(name string, stdin io.Reader, file []byte) (io.ReadCloser, error) {
	switch name {
	case "":
		return io.NopCloser(bytes.NewReader(file)), nil
	case "-":
		return io.NopCloser(stdin), nil
	}
	return os.Open(name)
}

// Scaled divides the delays, so that a demonstration of minutes takes seconds.
func Scaled(broker middleware.Rescheduler, speed float64) middleware.Rescheduler {
	return middleware.ReschedulerFunc(
		func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
			return broker.Reschedule(ctx, origin, m, time.Duration(float64(delay)/speed))
		})
}

// Start runs the router until it is closed, and returns once it is running. Its result is sent to the channel.
func Start(ctx context.Context, router *message.Router) (<-chan error, error) {
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-router.Running():
		return ended, nil
	case err := <-ended:
		return nil, fmt.Errorf("router: %w", err)
	}
}

// Serve runs the router, gives it work, and returns when every message has come to its end, when none gets any further
// for as long as standstill, or when the user interrupts.
func Serve(ctx context.Context, router *message.Router, ledger *Ledger, standstill time.Duration,
	work func(context.Context) error,
) error {
	limited, cancel := patience.Context(ctx, standstill, ledger.Progress)
	defer cancel()
	ended, err := Start(ctx, router)
	if err != nil {
		return err
	}
	worked := make(chan error, 1) // work may wait for input on a terminal, which no context can interrupt
	go func() {
		err := work(limited)
		if worked <- err; err != nil {
			cancel()
		}
		ledger.Seal()
	}()
	select {
	case <-ledger.Settled():
	case <-limited.Done():
	}
	select {
	case err = <-worked:
	default:
	}
	if ctx.Err() != nil {
		ledger.Interrupt()
	}
	err = errors.Join(err, router.Close())
	return errors.Join(err, <-ended)
}

// Entries returns the dead letters that the filter selects, oldest first.
func Entries(ctx context.Context, letters *dlq.Letters, filter dlq.Filter) (all []dlq.Entry, err error) {
	page := dlq.Page{Limit: driver.MaxPage, Order: driver.OldestFirst}
	for {
		listing, err := letters.Store().List(ctx, filter, page)
		if err != nil {
			return nil, fmt.Errorf("list dead letters: %w", err)
		}
		all = append(all, listing.Entries...)
		if page.After = listing.Next; page.After == "" {
			return all, nil
		}
	}
}

// Place returns the part of a store's URL that may be shown.
func Place(dlqURL string) string {
	if path, ok := strings.CutPrefix(dlqURL, "sqlite:"); ok {
		return "the SQLite file " + strings.TrimPrefix(path, "//")
	}
	return brokers.Redact(dlqURL)
}
