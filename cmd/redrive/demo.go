package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/wait"
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
