package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/notify"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/middleware"
)

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Collect dead letters, work on redrive runs, and answer over HTTP", Args: cobra.NoArgs,
		Long: `Collect the dead letters that the configuration names into the store, work on redrive runs, apply the rules, purge what the
retention no longer keeps, and answer over HTTP: the dashboard at /, the REST API below /api/v1, /livez and /readyz. Without
server.auth it answers only this machine. Ctrl-C, or SIGTERM, drains: dead letters already read are stored or returned, and
messages already sent are recorded.`,
		Example: `  redrive serve --config redrive.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.server(cmd.Context())
			if err != nil {
				return err
			}
			return s.run(cmd.Context())
		},
	}
}

type server struct {
	app     *app
	cfg     *config.Config
	letters *dlq.Letters
	brokers map[string]brokers.Broker
	*dlq.Manager
	*redrive.Runner
	collector     *collector.Collector // nil without sources
	notifications *notifications       // nil without receivers
	handler       *dlqhttp.Handler
	listener      net.Listener
	logger        *slog.Logger
}

// server opens everything but brokers that do not answer, so that faults are found before anything runs.
func (a *app) server(ctx context.Context) (*server, error) {
	cfg, err := a.configuration()
	if err != nil {
		return nil, err
	}
	cfg.Log.Level = cmp.Or(cfg.Log.Level, "info")
	cfg.Server.Address = cmp.Or(cfg.Server.Address, config.DefaultAddress)
	if a.metrics, err = newMetrics(&cfg.Metrics); err != nil {
		return nil, err
	}
	letters, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	opened, err := a.lateBrokers(ctx)
	if err == nil {
		err = reach(ctx, opened)
	}
	if err != nil {
		return nil, err
	}
	return a.assemble(ctx, letters, opened)
}

// assemble makes a server from its opened parts.
func (a *app) assemble(ctx context.Context, letters *dlq.Letters, opened map[string]brokers.Broker) (*server, error) {
	s := &server{app: a, cfg: a.cfg, letters: letters, brokers: opened, logger: a.logger()}
	var redriver dlq.Redriver
	if len(opened) > 0 {
		router, err := newRouter(s.cfg, letters, opened, s.logger)
		if err != nil {
			return nil, err
		}
		redriver = router
	}
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	child, err := payload.NewChild(program, evaluatorName)
	if err != nil {
		return nil, err
	}
	a.jq = child
	a.onClose(child.Close)
	if s.Manager, s.Runner, err = a.workers(letters, redriver); err != nil {
		return nil, err
	}
	if err := s.makeCollector(); err != nil {
		return nil, err
	}
	if err := s.makeNotifications(); err != nil { //nolint:contextcheck // what it makes lives longer than the start
		return nil, err
	}
	if a.metrics != nil {
		a.metrics.watch(s)
	}
	if err := s.makeHandler(); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.cfg.Server.Address)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.listener = listener
	return s, nil
}

// checkServer constructs what serve does from the configuration, on an empty store in memory, and reports every fault.
// Nothing else is opened but the files of a certificate.
func (a *app) checkServer(ctx context.Context) error {
	letters, err := dlq.Open(ctx, "sqlite::memory:", dlq.WithoutSpool())
	if err != nil {
		return err
	}
	a.onClose(letters.Close)
	s := &server{app: a, cfg: a.cfg, letters: letters, logger: slog.New(slog.DiscardHandler)}
	if s.Manager, s.Runner, err = a.workers(letters, nil); err != nil {
		return err
	}
	notices := s.makeNotifications() //nolint:contextcheck // see assemble
	return errors.Join(a.checkBrokers(), notices, s.makeHandler())
}

func (s *server) makeCollector() error {
	c := s.cfg.Collector
	if len(c.Sources) == 0 {
		return nil
	}
	cfg := collector.Config{Sink: s.letters, Hold: c.Hold, Logger: s.logger}
	for _, source := range c.Sources {
		cfg.Sources = append(cfg.Sources, collector.Source{
			Broker: source.Broker, Topic: source.Topic,
			Subscriber: s.brokers[source.Broker].Subscriber(brokers.WithConcurrency(c.Concurrency)),
			Origin: envelope.Origin{
				Topic: source.Origin.Topic, Consumer: source.Origin.Consumer, Exchange: source.Origin.Exchange,
				RoutingKey: source.Origin.RoutingKey,
			},
		})
	}
	var err error
	s.collector, err = collector.New(cfg)
	return err
}

// shutdownTimeout limits how long HTTP requests may take to end.
const shutdownTimeout = 10 * time.Second

// run runs everything until ctx ends, which is not an error, or a part fails.
func (s *server) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	web := s.web()
	running.Go(func() error { return s.serve(web) })
	running.Go(func() error {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		return web.Shutdown(closing)
	})
	if s.collector != nil {
		running.Go(func() error { return s.collector.Run(ctx) })
	}
	if len(s.brokers) > 0 {
		running.Go(func() error { return ended(ctx, s.Work(ctx)) })
	}
	if rules := s.cfg.Redrive.Rules; len(rules) > 0 {
		running.Go(func() error { return ended(ctx, s.Automate(ctx, rules...)) })
	}
	if s.notifications != nil {
		running.Go(func() error { return s.notifications.run(ctx) })
	}
	if s.cfg.Retention != (dlq.Retention{}) {
		running.Go(func() error {
			s.retain(ctx)
			return nil
		})
	}
	s.logger.InfoContext(ctx, "serving", "address", s.url(), "sources", len(s.cfg.Collector.Sources),
		"brokers", len(s.brokers))
	err := running.Wait()
	s.logger.Info("stopped")
	return err
}

// ended ignores an error that is due to the end of ctx.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return nil
	}
	return err
}

// evaluatorName is the command that a server runs for jq expressions, so that their time and memory are not the
// server's.
const evaluatorName = "evaluate-jq"

func (a *app) evaluatorCommand() *cobra.Command {
	return &cobra.Command{
		Use: evaluatorName, Short: "Evaluate jq expressions for a server", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error { return payload.Serve(a.in, a.out) },
	}
}

// A notice is tried for about half an hour, or for an hour if its receiver requests long pauses.
const (
	noticeAttempts = 13
	noticeFirst    = time.Second
	noticeLongest  = 5 * time.Minute
	noticeTimeout  = 15 * time.Second
)

// notifications find what people need to know, and deliver it by the pipeline that services use. Retries wait in
// memory: what a receiver has had is in the store, and after a restart the rest is found again.
type notifications struct {
	*notify.Notifier

	router *message.Router
}

func (s *server) makeNotifications() error {
	receivers := s.cfg.Notifications.Receivers
	if len(receivers) == 0 {
		return nil
	}
	rules, reveal, err := s.cfg.Redaction.Rules()
	if err != nil {
		return usagef("%v", err)
	}
	if dlqhttp.Viewer.Allows(reveal) {
		rules = nil // viewers see everything
	}
	broker, err := memory.New(brokers.Config{Logger: s.logger})
	if err != nil {
		return err
	}
	s.app.onClose(broker.Close)
	notifier, err := notify.New(notify.Config{
		Store: s.letters.Store(), Publisher: broker.Publisher(), Receivers: receivers, Redaction: rules,
		PublicURL: s.cfg.Server.PublicURL, Quiet: s.cfg.Notifications.Quiet, Interval: s.cfg.Notifications.Interval,
		Retention: s.cfg.Retention, Logger: s.logger,
	})
	if err != nil {
		return usagef("notifications: %v", err)
	}
	backoff := middleware.WithCap(middleware.Exponential(noticeFirst, 2), noticeLongest)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: s.letters, Logger: s.logger, MaxAttempts: noticeAttempts, Timeout: noticeTimeout,
		Backoff: backoff,
		Hooks: middleware.Hooks{OnDeadLetter: func(ctx context.Context, p middleware.DeadLetterParams) error {
			notifier.GaveUp(ctx, p.DeadLetter)
			return nil
		}},
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(s.logger))
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	for _, name := range notifier.Receivers() {
		router.AddConsumerHandler("notify "+name, notify.Topic(name), broker.Subscriber(brokers.WithConcurrency(1)),
			func(m *message.Message) error {
				attempt, _ := middleware.AttemptFrom(m.Context())
				return retryAfter(notifier.Deliver(m.Context(), name, m.Payload), backoff.Delay(attempt.Number, 0))
			})
	}
	s.notifications = &notifications{notifier, router}
	return nil
}

// retryAfter honours the pause that a receiver requests with its answer, up to noticeLongest. A shorter one than the
// backoff would use up the attempts in no time.
func retryAfter(err error, backoff time.Duration) error {
	answer, ok := errors.AsType[*notify.StatusError](err)
	if !ok {
		return err
	}
	status, ok := errors.AsType[*middleware.StatusError](middleware.HTTPStatus(answer.Status, answer.Header))
	if !ok || status.RetryAfter <= backoff {
		return err
	}
	status.RetryAfter = min(status.RetryAfter, noticeLongest)
	return fmt.Errorf("notify: receiver %q: %w", answer.Receiver, status)
}

func (n *notifications) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return n.router.Run(ctx) })
	running.Go(func() error { return ended(ctx, n.Run(ctx)) })
	return running.Wait()
}
