package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/wait"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

const demoBroker = "demo"

func (a *app) demoCommand() *cobra.Command {
	var (
		dir, address string
		speed        float64
		lasts        time.Duration
	)
	cmd := &cobra.Command{
		Use: "demo", Short: "Start everything in memory and SQLite, with traffic and failures", Args: cobra.NoArgs,
		Long: `Start everything in memory and SQLite: a shop whose bank is down now and then, a shipping service in another language whose dead
letters are collected, a store, and the server. It prints what to try in another terminal.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if speed <= 0 {
				return usagef("--speed %v: must be positive", speed)
			}
			if dir == "" {
				made, err := os.MkdirTemp("", "redrive-demo-")
				if err != nil {
					return err
				}
				dir = made
				a.onClose(func() error { return os.RemoveAll(made) })
			} else if err := os.MkdirAll(dir, 0o750); err != nil {
				return err
			}
			path := filepath.Join(dir, "dead-letters.db")
			if _, err := os.Lstat(path); err == nil {
				return usagef("%s exists: the demo writes into a new store; give another --dir", path)
			}
			return a.demo(cmd.Context(), path, address, speed, lasts)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory for a new store, which is kept (default a temporary one, which is "+
		"removed)")
	cmd.Flags().StringVar(&address, "address", config.DefaultAddress, "host:port of the server")
	cmd.Flags().Float64Var(&speed, "speed", 20, "orders a second")
	cmd.Flags().Var((*age)(&lasts), "for", "end after running this long")
	return cmd
}

func (a *app) demo(ctx context.Context, path, address string, speed float64, lasts time.Duration) error {
	a.cfg = &config.Config{
		Store: config.Store{URL: "sqlite:" + path + "?synchronous=normal"},
		Brokers: map[string]config.Broker{demoBroker: {
			Config: brokers.Config{URL: "mem://"}, Outcome: collector.OutcomeConfirmed,
		}},
		Collector: config.Collector{
			Sources: []config.Source{{Broker: demoBroker, Topic: shippingErrors}}, Concurrency: config.DefaultConcurrency,
		},
		Redrive: config.Redrive{ApprovalAbove: new(int64(demoAlone))},
		Server:  config.Server{Address: address}, Metrics: config.Metrics{LegacyNames: true},
	}
	var err error
	if a.metrics, err = newMetrics(&a.cfg.Metrics); err != nil {
		return err
	}
	letters, err := a.open(ctx)
	if err != nil {
		return err
	}
	broker, err := memory.New(brokers.Config{Logger: a.logger()}) //nolint:contextcheck // it outlives ctx, to drain
	if err != nil {
		return err
	}
	a.onClose(broker.Close)
	server, err := a.assemble(ctx, letters, map[string]brokers.Broker{demoBroker: broker})
	if err != nil {
		return err
	}
	pipelines, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "shop"})
	if err != nil {
		return err
	}
	a.metrics.registry.MustRegister(pipelines)
	monitor, err := live.New(live.Config{
		Service: "shop", Store: letters.Store(), Interval: time.Second, Logger: a.logger(),
	})
	if err != nil {
		return err
	}
	shop, err := newShop(broker, letters, pipelines, monitor, a.logger())
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(a.out, "Writing a week of history first.")
	if err := history(ctx, letters, server.Runner, time.Now()); err != nil {
		return ended(ctx, err)
	}
	a.printIntroduction(path, server.listener.Addr().String())

	// Counted from the start, the time could be over while the store is still being made.
	if lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lasts)
		defer cancel()
	}
	return a.runDemo(ctx, server, shop, monitor, speed)
}

func (a *app) runDemo(ctx context.Context, server *server, shop *shop, monitor *live.Monitor, speed float64) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return shop.run(ctx, speed) })
	running.Go(func() error {
		select { // before the shop reads, the runs of the history would find no consumer
		case <-shop.router.Running():
		case <-ctx.Done():
		}
		return server.run(ctx)
	})
	running.Go(func() error { return monitor.Run(ctx) })
	running.Go(func() error { return a.report(ctx, shop, server.Manager) })
	return running.Wait()
}

// printIntroduction prints what exists and what can be tried.
func (a *app) printIntroduction(path, address string) {
	_, _ = fmt.Fprintf(a.out, `A shop is running: its bank is down for the first 20 seconds of every minute. The store begins with a week of
history, a run that stops because its orders die again, and one that waits for a second person.

  look     http://%[2]s/
  store    %[1]s
  API      http://%[2]s/api/v1/entries
  health   http://%[2]s/readyz
  metrics  http://%[2]s/metrics

In another terminal:

  export REDRIVE_SERVER=http://%[2]s
  %[3]s dlq groups
  %[3]s dlq show 1
  %[3]s dlq redrive --error bank --limit 50 --canary 1,10 --id mine --yes
  %[3]s runs show mine
  %[3]s runs show without-a-card
  %[3]s runs approve last-evening
  %[3]s dlq tail

Ctrl-C ends it.

`, path, address, programName())
}

// programName is what to type for this program in another terminal.
func programName() string {
	path, err := os.Executable()
	if err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/redrive"
	}
	return os.Args[0]
}

// reportEvery is how often demo prints its numbers.
const reportEvery = 5 * time.Second

func (a *app) report(ctx context.Context, s *shop, m *dlq.Manager) error {
	began := time.Now()
	for wait.For(ctx, reportEvery) == nil {
		stats, err := m.Stats(ctx, dlq.StatsQuery{})
		if err != nil {
			return ended(ctx, err)
		}
		bank := "up"
		if bankDown(time.Now()) {
			bank = "down"
		}
		var dead []string
		for _, status := range wire.Statuses() {
			if n := stats.Counts.Of(status); n > 0 {
				dead = append(dead, fmt.Sprintf("%d %s", n, strings.ToLower(string(status))))
			}
		}
		a.hint("%4s  bank %-4s  orders %d, paid %d, retries %d, shipped %d; dead letters: %s",
			time.Since(began).Round(time.Second), bank,
			s.ordered.Load(), s.paid.Load(), s.retried.Load(), s.shipped.Load(), cmp.Or(strings.Join(dead, ", "), "none"))
	}
	return nil
}

// Topics of the demo.
const (
	orderTopic     = "orders"
	shippingTopic  = "shipping"
	shippingErrors = "shipping_error"
)

// shop is the traffic of the demo: a handler of ours charges orders, and a service that does not know us ships them.
type shop struct {
	broker *memory.Broker
	router *message.Router

	ordered, paid, retried, shipped atomic.Int64
}

type order struct {
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Total    int    `json:"total_cents"`
	Card     string `json:"card"`
}

func newOrder(number int) order {
	return order{number, fmt.Sprintf("customer-%d", number%97), 500 + number%90*100, "4111"}
}

// bankDown simulates an outage that an operator can watch, and redrive after.
func bankDown(now time.Time) bool { return now.Second() < 20 }

func newShop(
	broker *memory.Broker, letters *dlq.Letters, observer middleware.Observer, monitor *live.Monitor, logger *slog.Logger,
) (*shop, error) {
	s := &shop{broker: broker}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: letters, Observer: middleware.Observers{observer, monitor},
		MaxAttempts: middleware.Retries(2), Backoff: middleware.Steps(200*time.Millisecond, time.Second),
		Logger: slog.New(slog.DiscardHandler), // it would report the failures, which are intended here
	})
	if err != nil {
		return nil, err
	}
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NewSlogLogger(logger))
	if err != nil {
		return nil, err
	}
	s.router.AddMiddleware(pipeline.Middleware)
	s.router.AddConsumerHandler("charge", orderTopic, monitor.Subscriber(broker.Subscriber()), s.charge)
	return s, nil
}

// run takes orders until ctx ends.
func (s *shop) run(ctx context.Context, speed float64) error {
	shipping, err := s.broker.Subscriber().Subscribe(ctx, shippingTopic)
	if err != nil {
		return err
	}
	routed := make(chan error, 1)
	go func() { routed <- s.router.Run(ctx) }()
	shipped := make(chan struct{})
	go func() {
		defer close(shipped)
		s.ship(shipping)
	}()
	defer func() { <-shipped }()
	ticker := time.NewTicker(time.Duration(float64(time.Second) / speed))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return <-routed
		case err := <-routed:
			return err
		case <-ticker.C:
		}
		if err := s.order(int(s.ordered.Add(1))); err != nil {
			return ended(ctx, err)
		}
	}
}

// liveOrders is below the numbers of the demo's live orders; those of its history are smaller.
const liveOrders = 1000

// order publishes an order; some have faults that no retry fixes.
func (s *shop) order(number int) error {
	o := newOrder(number)
	o.Number += liveOrders
	switch {
	case number%37 == 0:
		o.Card = ""
	case number%53 == 0:
		o.Total = -1
	}
	e, err := envelope.New("shop", orderTopic, o, nil, envelope.EventNamed("order.placed"))
	if err != nil {
		return err
	}
	m := e.Message()
	if number%101 == 0 {
		m.Payload = m.Payload[:len(m.Payload)/2] // a producer's connection broke
	}
	return s.broker.Publisher().Publish(orderTopic, m)
}

var errBank = errors.New("bank: connection refused")

// charge is the handler: it fails like real handlers.
func (s *shop) charge(m *message.Message) error {
	if attempt, ok := middleware.AttemptFrom(m.Context()); ok && attempt.Number > 1 {
		s.retried.Add(1)
	}
	var o order
	if err := json.Unmarshal(m.Payload, &o); err != nil {
		return middleware.Permanent(fmt.Errorf("order cannot be read: %w", err))
	}
	switch {
	case o.Total < 0:
		return middleware.Permanent(fmt.Errorf("order %d: the total is negative", o.Number))
	case o.Card == "":
		return middleware.Permanent(fmt.Errorf("order %d: %s has no card", o.Number, o.Customer))
	case bankDown(time.Now()) && rand.N(3) > 0: //nolint:gosec // a demo
		return fmt.Errorf("order %d: %w", o.Number, errBank)
	}
	s.paid.Add(1)
	parcel := message.NewMessage(watermill.NewUUID(), m.Payload)
	return s.broker.Publisher().Publish(shippingTopic, parcel)
}

// ship is a service in another language: it moves failures to its error queue, with its own headers.
func (s *shop) ship(parcels <-chan *message.Message) {
	for m := range parcels {
		redriven := m.Metadata[envelope.KeyRedriveID] != ""
		if n := s.shipped.Add(1); n%29 == 0 && !redriven {
			failed := message.NewMessage(m.UUID, m.Payload)
			failed.Metadata = message.Metadata{
				"MT-Reason": "fault", "MT-Fault-InputAddress": "rabbitmq://demo/" + shippingTopic,
				"MT-Fault-ExceptionType": "Shipping.NoCarrierException", "MT-Fault-Message": "No carrier serves this address",
				"MT-Fault-Timestamp": time.Now().UTC().Format(time.RFC3339Nano), "MT-Fault-ConsumerType": "Shipping.ParcelConsumer",
			}
			if s.broker.Publisher().Publish(shippingErrors, failed) != nil {
				m.Nack()
				continue
			}
		}
		m.Ack()
	}
}

// The demo begins with a week of history.
const (
	historyDays = 7
	outage      = 150 // dead letters of one bad evening, more than one person may redrive alone
	demoAlone   = 100
)

// history fills an empty store with a week of a shop, and leaves two runs to look at: one that stops, because its
// orders die again, and one that waits for approval.
func history(ctx context.Context, letters *dlq.Letters, runner *redrive.Runner, now time.Time) error {
	stats, err := letters.Store().Stats(ctx, dlq.StatsQuery{})
	if err != nil || stats.Counts != (driver.Counts{}) {
		return err // an earlier demo's store, which was kept
	}
	put := func(at time.Time, o order, why string, reason envelope.Reason) error {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := message.NewMessage(fmt.Sprintf("history-%d", o.Number), payload)
		m.Metadata[envelope.KeyMessageID] = m.UUID
		_, err = letters.Store().Put(ctx, dlq.NewEntry(&envelope.DeadLetter{ //nolint:contextcheck // pure; the message has a separate context
			Message: m, Reason: reason, Err: envelope.Error{Message: why}, Class: "*errors.errorString", Handler: "charge",
			Origin:   envelope.Origin{Broker: "mem", Topic: orderTopic, Consumer: brokers.DefaultGroup},
			Attempts: 3, At: at,
		}))
		return err
	}
	n := 0
	for hour := historyDays * 24; hour > 0; hour-- {
		at := now.Add(-time.Duration(hour) * time.Hour)
		for range hour % 3 {
			n++
			o := newOrder(n)
			o.Card = ""
			err := put(at, o, fmt.Sprintf("order %d: %s has no card", n, o.Customer), envelope.ReasonPermanent)
			if err != nil {
				return err
			}
		}
	}
	for range outage {
		n++
		at := now.Add(-26*time.Hour + time.Duration(n%40)*time.Minute)
		if err := put(at, newOrder(n), fmt.Sprintf("order %d: %v", n, errBank), envelope.ReasonExhausted); err != nil {
			return err
		}
	}
	for _, spec := range []redrive.Spec{
		{ID: "without-a-card", Filter: dlq.Filter{ErrorText: "has no card"}, Limit: 60, Canary: []int{1, 20}},
		{ID: "last-evening", Filter: dlq.Filter{ErrorText: "bank"}, Rate: 20, Canary: []int{1, 10}},
	} {
		if _, err := runner.StartRun(ctx, spec, dlq.By{Actor: "ben", Note: "an example of the demo"}); err != nil {
			return err
		}
	}
	return nil
}
