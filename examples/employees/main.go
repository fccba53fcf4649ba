// Command employees is a payroll's consumer of employee events, after a system that keeps its dead letters in a table
// with its own database: events are validated, what is invalid goes to the table dlq_events and is never retried,
// technical errors are retried, and the consumer continues in any case.
//
//	go run ./examples/employees                     # 3,000 events, 1,000 of them invalid
//	go run ./examples/employees -fix EMP-010006 -set cpf=529.982.247-25   # correct one and send it back
//
// BROKER_URL (kafka://...) and DLQ_URL (postgres://...) choose the broker and the store; by default both are in this
// process and in a file. See wire.go for what a service has to write.
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

// Exit codes: 0 when every event has one fate, 1 when not or something failed, 2 for a wrong command line.
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
	fix         string
	set         changes
	verbose     bool
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{brokerURL: os.Getenv("BROKER_URL"), dlqURL: os.Getenv("DLQ_URL"), set: changes{}}
	flags := flag.NewFlagSet("employees", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Float64Var(&s.speed, "speed", 20, "divide every delay by this; 1 is real time")
	flags.IntVar(&s.concurrency, "concurrency", 16, "handlers at once, for each topic")
	flags.DurationVar(&s.patience, "patience", 2*time.Minute, "give up when no event has got any further for this long")
	flags.StringVar(&s.fix, "fix", "", "correct the dead letter of this `employee` (or with this id), send it back, and "+
		"read no input")
	flags.Var(s.set, "set", "`field=value` to correct; may be given more than once")
	flags.BoolVar(&s.verbose, "v", false, "log every decision of the pipeline to standard error")
	flags.Usage = func() {
		_, _ = fmt.Fprintln(stderr, "usage: employees [flags] [FILE | -]     records as kcat -J prints them; "+
			"examples/employees/employees.ndjson by default")
		_, _ = fmt.Fprintln(stderr, "       BROKER_URL (default mem://) and DLQ_URL (default "+
			"sqlite:employees-dead-letters.db) choose broker and store")
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
	if (s.fix == "") != (len(s.set) == 0) {
		faults = append(faults, errors.New("-fix and -set go together: whose dead letter to correct, and what in it"))
	}
	if flags.NArg() > 1 {
		faults = append(faults, fmt.Errorf("%d input files: give one, or - for standard input", flags.NArg()))
	}
	s.input = flags.Arg(0)
	if s.brokerURL == "" {
		s.brokerURL = "mem://"
	}
	if s.dlqURL == "" {
		s.dlqURL = "sqlite:employees-dead-letters.db"
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
		_, _ = fmt.Fprintln(stderr, "employees:", err)
		return exitUsage
	}
	// Decisions are log lines in a service; here they would hide the report.
	level := slog.LevelError + 8
	if s.verbose {
		level = slog.LevelDebug
	}
	sv, err := open(ctx, s, slog.New(slog.NewTextHandler(stderr,
		&slog.HandlerOptions{Level: level, ReplaceAttr: envelope.LevelName})))
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "employees:", err)
		return exitFailed
	}
	work := func(ctx context.Context) error { return sv.publishAll(ctx, s.input, stdin) }
	if s.fix != "" {
		work = func(ctx context.Context) error { return sv.fix(ctx, s.fix, s.set) }
	}
	started := time.Now()
	err = sv.serve(ctx, s.patience, work)
	patience.Spool(ctx, s.patience, sv.letters) // the report counts what is in the store
	balanced := err == nil && sv.report(context.WithoutCancel(ctx), stdout, time.Since(started), s)
	if err = errors.Join(err, sv.close()); err != nil {
		_, _ = fmt.Fprintln(stderr, "employees:", err)
	}
	if err != nil || !balanced {
		return exitFailed
	}
	return exitBalanced
}

// serve runs the consumers, gives them work, and returns when every event has ended, when none gets any further for as
// long as patience, or when the user interrupts.
func (sv *service) serve(ctx context.Context, standstill time.Duration, work func(context.Context) error) error {
	ctx, cancel := patience.Context(ctx, standstill, sv.tally.progress)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- sv.router.Run(context.WithoutCancel(ctx)) }()
	select {
	case <-sv.router.Running():
	case err := <-ended:
		return fmt.Errorf("router: %w", err)
	}
	err := work(ctx)
	sv.tally.seal()
	if err == nil {
		select {
		case <-sv.tally.done:
		case <-ctx.Done():
		}
	}
	err = errors.Join(err, sv.router.Close())
	return errors.Join(err, <-ended)
}
