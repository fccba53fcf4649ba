// Command bus is a service bus with two services: one fails and retries with its own backoff, the other gets each event
// once and is not affected.
//
//	go run ./examples/bus                                            # in memory
//	BROKER_URL=amqp://guest:guest@localhost/ go run ./examples/bus   # on RabbitMQ
//
// On RabbitMQ the names are those of the system that this is modelled on: the topic exchange easyweek.bus, the queues
// easyweek.invoice-service and easyweek.mailer, and what has failed for good in their .failed. See wire.go for what a
// service has to write.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/examples/internal/patience"
)

func main() { demo.Main(run) }

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bus", flag.ContinueOnError)
	flags.SetOutput(stderr)
	project := flags.String("project", "easyweek", "prefix of all names, which keeps projects on one broker apart")
	speed := flags.Float64("speed", 1, "divide every delay by this; 1 is real time")
	standstill := flags.Duration("patience", time.Minute, "give up when no event has got any further for this long")
	verbose := flags.Bool("v", false, "log every decision of the pipelines to standard error")
	err := flags.Parse(args)
	if err == nil && (*speed <= 0 || flags.NArg() > 0) {
		err = errors.New("-speed must be positive, and there are no arguments; see -h")
	}
	if err != nil {
		return demo.Usage(stderr, "bus", err)
	}
	broker, err := open(ctx, cmp.Or(os.Getenv("BROKER_URL"), "mem://"), *project)
	if err != nil {
		return demo.Exit(stderr, "bus", false, err)
	}
	t := newTranscript(stdout, *project, *speed)
	ctx, cancel := patience.Context(ctx, *standstill, t.progress)
	defer cancel()
	ended, err := traffic(ctx, broker, t, demo.Logger(stderr, *verbose))
	return demo.Exit(stderr, "bus", ended, errors.Join(err, broker.Close()))
}

// traffic runs the services on the bus, sends them events, and waits until all events have ended or ctx is done.
func traffic(ctx context.Context, broker brokers.Broker, t *transcript, logger *slog.Logger) (ended bool, err error) {
	router, err := wire(broker, t.speed, t, logger)
	if err != nil {
		return false, err
	}
	all := events(envelope.NewID)
	t.expect(services(), all)
	stopped, err := demo.Start(ctx, router)
	if err != nil {
		return false, err
	}
	t.begin()
	if err = publish(broker, all); err == nil {
		select {
		case <-t.done:
		case <-ctx.Done():
		}
	}
	err = errors.Join(err, router.Close(), <-stopped)
	return t.report(), err
}
