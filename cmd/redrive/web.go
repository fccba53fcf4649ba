package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/wait"
)

func (s *server) makeHandler() error {
	if pair := s.cfg.Server.TLS; pair.Certificate != "" {
		if _, err := tls.LoadX509KeyPair(pair.Certificate, pair.Key); err != nil {
			return fmt.Errorf("server.tls: %w", err)
		}
	}
	auth, err := s.cfg.Server.Auth.Authenticators()
	if err != nil {
		return usagef("%v", err)
	}
	if s.cfg.Server.Auth.Stored {
		stored, err := dlqhttp.Stored(s.letters.Store(), s.logger)
		if err != nil {
			return usagef("server.auth.stored: %v", err)
		}
		auth = append([]dlqhttp.Authenticator{stored}, auth...)
	}
	login, err := s.cfg.Server.Login(s.letters.Store())
	if err != nil {
		return usagef("server.auth.oidc: %v", err)
	}
	known := auth
	if login != nil {
		known = append(slices.Clone(auth), login)
	}
	if err := dlqhttp.CheckAddress(s.cfg.Server.Address, known); err != nil {
		return usagef("%v", err)
	}
	rules, reveal, err := s.cfg.Redaction.Rules()
	if err != nil {
		return usagef("%v", err)
	}
	_, data, err := shownConfig(s.cfg)
	if err != nil {
		return err
	}
	var settings any
	if err := json.Unmarshal(data, &settings); err != nil {
		return err
	}
	var metrics http.Handler
	if s.app.metrics != nil {
		metrics = s.app.metrics.handler(s.logger)
	}
	c := &s.cfg.Server
	s.handler, err = dlqhttp.New(dlqhttp.Config{
		Manager: s.Manager, Runner: s.Runner, Prefix: c.Prefix, Auth: auth, Hosts: c.Hosts, Origins: c.Origins,
		ReadOnly: c.ReadOnly, AuditReads: c.AuditReads, Login: login, PublicURL: c.PublicURL,
		Redaction: rules, RevealTo: reveal, Health: s.health, Topology: s.topology, Depths: s.depths, Settings: settings,
		Rules: s.cfg.Redrive.Rules, Rate: s.cfg.Redrive.Rate, Retention: s.cfg.Retention,
		Limits: c.Limits, Logger: s.logger, Metrics: metrics,
	})
	if err != nil {
		return usagef("server: %v", err)
	}
	return nil
}

// web is the HTTP server around the handler. The timeouts for bodies and responses are the handler's, because imports,
// exports and progress streams may take long. net/http's own answer to OPTIONS * would wait forever for a body.
func (s *server) web() *http.Server {
	web := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(s.logger.Handler(), slog.LevelWarn), DisableGeneralOptionsHandler: true,
	}
	web.RegisterOnShutdown(s.handler.EndStreams)
	return web
}

// serve serves until the server is shut down.
func (s *server) serve(web *http.Server) error {
	var err error
	if pair := s.cfg.Server.TLS; pair.Certificate != "" {
		err = web.ServeTLS(s.listener, pair.Certificate, pair.Key)
	} else {
		err = web.Serve(s.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("server: %w", err)
}

func (s *server) url() string {
	scheme := "http://"
	if s.cfg.Server.TLS.Certificate != "" {
		scheme = "https://"
	}
	return scheme + s.listener.Addr().String() + s.cfg.Server.Prefix
}

// health is the state of each component; all are checked at once.
func (s *server) health(ctx context.Context) dlqhttp.Health {
	pings := map[string]func(context.Context) error{"store": s.letters.Store().Ping}
	for name, b := range s.brokers {
		pings["broker "+name] = b.Ping
	}
	var report dlqhttp.Health
	atOnce(pings, func(ping func(context.Context) error) error { return ping(ctx) }, func(name string, err error) {
		report.Add(name, err, dlqhttp.Component{})
	})
	if s.collector != nil {
		for _, source := range s.collector.Stats() {
			report.Add("source "+source.Broker+"/"+source.Topic, sourceFault(&source),
				dlqhttp.Component{Collected: source.Collected, Held: source.Held})
		}
	}
	return report
}

// sourceFault is what is wrong with a source; one that has not subscribed yet is not ready.
func sourceFault(s *collector.SourceStats) error {
	switch {
	case s.Err != "":
		return errors.New(s.Err)
	case !s.Subscribed:
		return errors.New("not subscribed")
	default:
		return nil
	}
}

type brokerView struct {
	Name    string   `json:"name"`
	URL     string   `json:"url"`
	Outcome string   `json:"outcome"`
	Sources []string `json:"sources"`
	// Topics are those of the sources' messages, as far as the configuration names them; Plan is what their consumers
	// need.
	Topics  []string `json:"topics,omitempty"`
	Plan    []string `json:"plan,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

// topology is the brokers, and the plan of what the configured topics need. The brokers are not contacted.
func (s *server) topology(context.Context) (any, error) {
	views := make([]brokerView, 0, len(s.cfg.Brokers))
	for _, name := range s.cfg.Names() {
		b := s.cfg.Brokers[name]
		v := brokerView{Name: name, URL: brokers.Redact(b.URL), Outcome: string(b.Outcome), Sources: []string{}}
		for i := range s.cfg.Collector.Sources {
			source := &s.cfg.Collector.Sources[i]
			if source.Broker != name {
				continue
			}
			v.Sources = append(v.Sources, source.Topic)
			if source.Origin.Topic == "" {
				continue
			}
			v.Topics = append(v.Topics, source.Origin.Topic)
			group := source.Origin.Consumer
			if b.IsQueueBroker() {
				group = "" // the consumer is a queue
			}
			_, plan, err := planned(&b, group, source.Origin.Topic)
			if err != nil {
				v.Problem = err.Error()
			}
			v.Plan = append(v.Plan, strings.FieldsFunc(plan, func(r rune) bool { return r == '\n' })...)
		}
		slices.Sort(v.Plan)
		v.Plan = slices.Compact(v.Plan)
		views = append(views, v)
	}
	return map[string]any{"brokers": views}, nil
}

// depths counts the messages in the brokers that can count, all at once.
func (s *server) depths(ctx context.Context) ([]dlqhttp.Depth, error) {
	var found []dlqhttp.Depth
	var errs []error
	type counted struct {
		depths []brokers.Depth
		err    error
	}
	atOnce(s.brokers, func(b brokers.Broker) (c counted) {
		if counter, ok := b.(brokers.DepthReporter); ok {
			c.depths, c.err = counter.Depths(ctx)
		}
		return c
	}, func(name string, c counted) {
		if c.err != nil && !errors.Is(c.err, errors.ErrUnsupported) {
			errs = append(errs, fmt.Errorf("broker %s: %w", name, c.err))
		}
		for _, d := range c.depths {
			found = append(found, dlqhttp.Depth{
				Broker: name, Topic: d.Topic, Group: d.Group, Kind: string(d.Kind), Messages: d.Messages,
			})
		}
	})
	return found, errors.Join(errs...)
}

// atOnce calls ask for all parts at the same time, and add with each answer, one after the other.
func atOnce[P, A any](parts map[string]P, ask func(P) A, add func(name string, answer A)) {
	var asking sync.WaitGroup
	var adding sync.Mutex
	for name, part := range parts {
		asking.Go(func() {
			answer := ask(part)
			adding.Lock()
			defer adding.Unlock()
			add(name, answer)
		})
	}
	asking.Wait()
}

// retainEvery is how often old entries are purged.
const retainEvery = time.Hour

// retain purges what the retention no longer keeps, now and every hour, until ctx ends.
func (s *server) retain(ctx context.Context) {
	for {
		n, err := s.Retain(ctx, s.cfg.Retention)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.logger.WarnContext(ctx, "old dead letters could not be purged; trying again in an hour", "error", err)
		case n > 0:
			s.logger.InfoContext(ctx, "old dead letters purged", "count", n)
		}
		if wait.For(ctx, retainEvery) != nil {
			return
		}
	}
}

// metrics are those of a server: of its store, runs and collector, of the process, and of what else is registered.
type metrics struct {
	registry *prometheus.Registry
	letters  *dlqmetrics.Metrics
}

// newMetrics returns nil if the configuration turns metrics off.
func newMetrics(cfg *config.Metrics) (*metrics, error) {
	if cfg.Off {
		return nil, nil //nolint:nilnil // none requested
	}
	letters, err := dlqmetrics.New(dlqmetrics.Config{LegacyNames: cfg.LegacyNames})
	if err != nil {
		return nil, err
	}
	m := &metrics{registry: prometheus.NewRegistry(), letters: letters}
	m.registry.MustRegister(letters, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m, nil
}

func (m *metrics) watch(s *server) {
	m.letters.Watch(dlqmetrics.Sources{Letters: s.letters, Collector: s.collector})
	m.registry.MustRegister(brokermetrics.New(s.brokers))
}

func (m *metrics) handler(logger *slog.Logger) http.Handler {
	return promhttp.InstrumentMetricHandler(m.registry, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		Registry: m.registry, ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true,
	}))
}
