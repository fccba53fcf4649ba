// Command employees is a payroll's consumer of employee events, modelled on a system that keeps its dead letters in a
// table. It validates events. An invalid one goes to the table dlq_events and is never retried; technical errors are
// retried. The consumer continues in any case.
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
	"io"
	"time"

	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/examples/internal/patience"
)

func main() { demo.Main(run) }

type settings struct {
	demo.Settings
	fix string
	set changes
}

func parse(args []string, stderr io.Writer) (settings, error) {
	s := settings{Settings: demo.Settings{Speed: 20, Concurrency: 16}, set: changes{}}
	flags := flag.NewFlagSet("employees", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.fix, "fix", "", "correct the dead letter of this `employee` (or with this id), send it back, and "+
		"read no input")
	flags.Var(s.set, "set", "`field=value` to correct; may be given more than once")
	err := s.Parse(flags, args, "records as kcat -J prints them", func() error {
		if (s.fix == "") != (len(s.set) == 0) {
			return errors.New("-fix and -set go together: whose dead letter to correct, and what in it")
		}
		return nil
	})
	return s, err
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	if err != nil {
		return demo.Usage(stderr, "employees", err)
	}
	sv, err := open(ctx, s, demo.Logger(stderr, s.Verbose))
	if err != nil {
		return demo.Exit(stderr, "employees", false, err)
	}
	work := func(ctx context.Context) error { return sv.publishAll(ctx, s.Input, stdin) }
	if s.fix != "" {
		work = func(ctx context.Context) error { return sv.fix(ctx, s.fix, s.set) }
	}
	started := time.Now()
	err = demo.Serve(ctx, sv.router, sv.ledger, s.Patience, work)
	patience.Spool(ctx, s.Patience, sv.letters) // the report counts what is in the store
	balanced := err == nil && sv.report(context.WithoutCancel(ctx), stdout, time.Since(started), s)
	return demo.Exit(stderr, "employees", balanced, errors.Join(err, sv.close()))
}
