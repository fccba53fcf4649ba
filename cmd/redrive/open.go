package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/config"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/redact"
)

const defaultConfig = "redrive.yaml"

// configuration reads the file, if there is one, and puts what flags and environment say over it.
func (a *app) configuration() (*config.Config, error) {
	if a.cfg != nil {
		return a.cfg, nil
	}
	path := firstOf(a.flags.config, os.Getenv("REDRIVE_CONFIG"))
	store := firstOf(a.flags.store, os.Getenv("REDRIVE_STORE"))
	if path == "" && store == "" {
		if _, err := os.Stat(defaultConfig); err == nil {
			path = defaultConfig
		}
	}
	cfg := &config.Config{Brokers: map[string]config.Broker{}}
	if path != "" {
		var err error
		if cfg, err = config.Load(path); err != nil {
			return nil, usagef("%v", err)
		}
	}
	if store != "" {
		cfg.Store.URL = store
	}
	if err := a.addBrokers(cfg); err != nil {
		return nil, err
	}
	a.cfg = cfg
	return cfg, nil
}

// addBrokers adds those of --broker and $REDRIVE_BROKER.
func (a *app) addBrokers(cfg *config.Config) error {
	given := a.flags.brokers
	if env := os.Getenv("REDRIVE_BROKER"); len(given) == 0 && env != "" {
		given = strings.Fields(env)
	}
	for _, text := range given {
		name, url, named := strings.Cut(text, "=")
		if !named || strings.ContainsAny(name, ":/") {
			name, _, _ = strings.Cut(text, ":")
			url = text
		}
		if cfg.Brokers == nil {
			cfg.Brokers = map[string]config.Broker{}
		}
		if _, taken := cfg.Brokers[name]; taken {
			return usagef("--broker %s: the name is taken: write another=URL", name)
		}
		cfg.Brokers[name] = config.Broker{
			Config:  brokers.Config{URL: url, Name: "redrive", Group: config.DefaultGroup},
			Outcome: collector.OutcomeConfirmed,
		}
	}
	return nil
}

// open opens the store. Nothing here takes dead letters of a pipeline, so there is no spool.
func (a *app) open(ctx context.Context) (*dlq.Letters, error) {
	if a.letters != nil {
		return a.letters, nil
	}
	cfg, err := a.configuration()
	if err != nil {
		return nil, err
	}
	if cfg.Store.URL == "" {
		return nil, usagef("no store: give --store URL, or --config FILE, or set REDRIVE_STORE")
	}
	opts := []dlq.Option{dlq.WithoutSpool(), dlq.WithLogger(a.logger())}
	if a.metrics != nil {
		opts = append(opts, dlq.WithObserver(a.metrics.letters))
	}
	letters, err := dlq.Open(ctx, cfg.Store.URL, opts...)
	if err != nil {
		return nil, err
	}
	a.letters = letters
	a.onClose(letters.Close)
	return letters, nil
}

// manager is what to work with for everything but redriving: a server where one is named, else the store.
func (a *app) manager(ctx context.Context) (operator, error) {
	if p, err := a.profile(); err != nil || p != nil {
		return a.connected(p, err)
	}
	letters, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	return letters.Manager(nil, a.managerOptions()...), nil
}

// connected is a server's operator.
func (a *app) connected(p *profile, err error) (operator, error) {
	if err != nil {
		return nil, err
	}
	return newRemote(p)
}

// redriver is what to redrive with: a server where one is named, else the store and the brokers.
func (a *app) redriver(ctx context.Context) (operator, error) {
	if p, err := a.profile(); err != nil || p != nil {
		return a.connected(p, err)
	}
	letters, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	if len(a.cfg.Brokers) == 0 {
		return nil, usagef("no broker to redrive through: give --broker URL, or --config FILE with brokers, or set REDRIVE_BROKER")
	}
	opened, err := a.openBrokers(ctx)
	if err != nil {
		return nil, err
	}
	router, err := newRouter(a.cfg, letters, opened, a.logger())
	if err != nil {
		return nil, err
	}
	return letters.Manager(router, a.managerOptions()...), nil
}

func (a *app) managerOptions() []dlq.ManagerOption {
	var opts []dlq.ManagerOption
	if d := a.cfg.Redrive.OutcomeTimeout; d > 0 {
		opts = append(opts, dlq.WithOutcomeTimeout(d))
	}
	if d := a.cfg.Redrive.PublishTimeout; d > 0 {
		opts = append(opts, dlq.WithPublishTimeout(d))
	}
	if d := a.cfg.Redrive.RunLease; d > 0 {
		opts = append(opts, dlq.WithRunLease(d))
	}
	if above := a.cfg.Redrive.ApprovalAbove; above != nil {
		opts = append(opts, dlq.WithApproval(*above))
	}
	return opts
}

// openBrokers opens every broker of the configuration, by name.
func (a *app) openBrokers(ctx context.Context) (map[string]brokers.Broker, error) {
	opened := make(map[string]brokers.Broker, len(a.cfg.Brokers))
	for _, name := range a.cfg.Names() {
		b := a.cfg.Brokers[name]
		if b.Scheme() == memory.Scheme {
			return nil, usagef("broker %s: mem:// ends with this command, and what is sent there with it", name)
		}
		operating := b.Operating()
		operating.Logger = a.logger()
		broker, err := brokers.OpenConfig(ctx, operating)
		if err != nil {
			return nil, fmt.Errorf("broker %s: %w", name, err)
		}
		a.onClose(broker.Close)
		opened[name] = broker
	}
	return opened, nil
}

func newRouter(
	cfg *config.Config, letters *dlq.Letters, opened map[string]brokers.Broker, logger *slog.Logger,
) (*collector.Router, error) {
	r := collector.RouterConfig{Store: letters.Store(), Logger: logger}
	for _, name := range cfg.Names() {
		b := cfg.Brokers[name]
		t := collector.Target{Name: name, Scheme: b.Scheme(), Redriver: opened[name], Outcome: b.Outcome}
		if !b.IsQueueBroker() {
			t.Publisher = opened[name].Publisher()
		}
		r.Targets = append(r.Targets, t)
	}
	return collector.NewRouter(r)
}

// logger is for what goes on inside: warnings only, unless the configuration says otherwise.
func (a *app) logger() *slog.Logger {
	log := config.Log{Level: "warn"}
	var rules *redact.Rules
	if a.cfg != nil {
		if a.cfg.Log.Level != "" {
			log = a.cfg.Log
		}
		rules, _, _ = a.cfg.Redaction.Rules() // checked by Validate
	}
	return log.Logger(a.err, a.colourful(a.err), rules)
}
