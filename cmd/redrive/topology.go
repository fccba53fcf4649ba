package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/watermill"
	watermillamqp "github.com/redrive-go/redrive/brokers/watermill/amqp"
	"github.com/redrive-go/redrive/brokers/watermill/gochannel"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/wait"
	"github.com/redrive-go/redrive/middleware"
)

func (a *app) topologyCommand() *cobra.Command {
	sub := func(use, short string, do func(context.Context, string, []string) error) *cobra.Command {
		return &cobra.Command{
			Use: use + " BROKER TOPIC...", Short: short, Args: cobra.MinimumNArgs(2),
			Example: "  redrive topology " + use + " rabbit orders invoices --config redrive.yaml",
			RunE: func(cmd *cobra.Command, args []string) error {
				return do(cmd.Context(), args[0], args[1:])
			},
		}
	}
	return group("topology", "Plan, check and create the queues and topics that consumers need", "",
		sub("plan", "Show what the consumers of topics need, without a connection", a.topologyPlan),
		sub("check", "Compare the plan with the broker and change nothing", a.topologyCheck),
		sub("apply", "Create what is missing; nothing is ever changed or deleted", a.topologyApply),
	)
}

func (a *app) topologyPlan(_ context.Context, name string, topics []string) error {
	_, plan, err := a.declared(name, topics)
	if err == nil {
		_, err = fmt.Fprint(a.out, plan)
	}
	return err
}

// declared is planned for brokers with a topology of ours.
func (a *app) declared(name string, topics []string) (cfg brokers.Config, plan string, err error) {
	cfg, plan, err = a.planned(name, topics)
	if err == nil && plan == "" {
		err = usagef("broker %s: nothing to plan: its driver creates what a consumer needs when it subscribes", name)
	}
	return cfg, plan, err
}

// topology is a broker's answer about a plan, for any driver.
type topology struct {
	note  string // what check leaves out
	none  bool   // it declares nothing
	plan  string
	check func(context.Context) ([]string, error)
	apply func(context.Context) error
}

// openTopology opens a broker as the services do: with their naming and group.
func (a *app) openTopology(ctx context.Context, name string, topics []string) (*topology, error) {
	cfg, plan, err := a.declared(name, topics)
	if err != nil {
		return nil, err
	}
	cfg.Logger = a.logger()
	broker, err := brokers.OpenConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	a.onClose(broker.Close)
	t := &topology{none: cfg.Params["declare"] == "none", plan: plan}
	switch driver := broker.(type) {
	case *rabbitmq.Broker:
		p := driver.Plan(topics...)
		if !driver.ChecksBindings() {
			t.note = "bindings are not compared, because AMQP cannot list them: add x-management=http://<host>:15672 to " +
				"the broker's URL"
		}
		t.check = func(ctx context.Context) ([]string, error) { return texts(driver.Check(ctx, p)) }
		t.apply = func(ctx context.Context) error { return driver.Apply(ctx, p) }
	case *kafka.Broker:
		p := driver.Plan(topics...)
		t.check = func(ctx context.Context) ([]string, error) { return texts(driver.Check(ctx, p)) }
		t.apply = func(ctx context.Context) error { return driver.Apply(ctx, p) }
	}
	return t, nil
}

func texts[T fmt.Stringer](findings []T, err error) ([]string, error) {
	var list []string
	for _, f := range findings {
		list = append(list, f.String())
	}
	return list, err
}

func (a *app) printLines(lines []string) error {
	_, err := io.WriteString(a.out, strings.Join(append(lines, ""), "\n"))
	return err
}

func (a *app) topologyCheck(ctx context.Context, name string, topics []string) error {
	t, err := a.openTopology(ctx, name, topics)
	if err != nil {
		return err
	}
	findings, err := t.check(ctx)
	if err != nil {
		return err
	}
	if t.note != "" {
		a.hint("%s", t.note)
	}
	if err := a.printLines(findings); err != nil {
		return err
	}
	if len(findings) > 0 {
		makes := ": redrive topology apply creates what is missing"
		if t.none {
			makes = ": the broker's URL has declare=none, so nothing is created; redrive topology apply creates it with " +
				"declare=adopt"
		}
		return &codedError{exitPartial, plural(len(findings), "difference") + makes}
	}
	a.hint("the broker is as planned")
	return nil
}

func (a *app) topologyApply(ctx context.Context, name string, topics []string) error {
	t, err := a.openTopology(ctx, name, topics)
	if err != nil {
		return err
	}
	if t.none {
		return usagef("broker %s: its URL has declare=none, so nothing is created: apply it with declare=adopt", name)
	}
	if _, err := fmt.Fprint(a.out, t.plan); err != nil {
		return err
	}
	if !a.flags.yes {
		if !a.interactive() {
			return refusedf("apply this plan: add --yes to do it")
		}
		if err := a.ask(ctx, "apply this plan"); err != nil {
			return err
		}
	}
	if err := t.apply(ctx); err != nil {
		return err
	}
	left, err := t.settled(ctx)
	if err != nil {
		return err
	}
	if err := a.printLines(left); err != nil {
		return err
	}
	if len(left) > 0 {
		return &codedError{exitPartial, "applied, but for " + plural(len(left), "difference") +
			", which are not changed automatically"}
	}
	a.hint("applied")
	return nil
}

// settleTime is how long a cluster may take to show a new topic: Kafka responds before every broker knows of it.
const settleTime = 10 * time.Second

// settled returns the differences that remain.
func (t *topology) settled(ctx context.Context) ([]string, error) {
	for deadline := time.Now().Add(settleTime); ; {
		left, err := t.check(ctx)
		if err != nil || len(left) == 0 || time.Now().After(deadline) {
			return left, err
		}
		if wait.For(ctx, 200*time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}

// explained is the timeline and the topology of a configuration in the output for programs.
type explained struct {
	Broker    string         `json:"broker,omitempty"`
	Policy    string         `json:"policy"`
	Attempts  []attemptView  `json:"attempts"`
	Consumers []consumerView `json:"consumers,omitempty"`
	Topology  string         `json:"topology,omitempty"`
}

type attemptView struct {
	Number int     `json:"number"`
	At     float64 `json:"at_seconds"`
	at     time.Duration
}

type consumerView struct {
	Topic string `json:"topic"`
	Group string `json:"group,omitempty"`
	Queue string `json:"queue"`
	Retry string `json:"retry"`
	Dead  string `json:"dead"`
}

// policyFlags are a retry policy on the command line.
type policyFlags struct {
	preset   string
	attempts int
	steps    []string
	original time.Duration
}

func (a *app) explainCommand() *cobra.Command {
	var policy policyFlags
	cmd := &cobra.Command{
		Use: "explain [BROKER] [TOPIC...]", Short: "Show the timeline of a failing message, and where it waits meanwhile",
		Long: `Show when a message that always fails runs, and with a broker of the configuration (or --broker) and topics, which queues or topics
it passes. Nothing is opened and nothing is changed.`,
		Example: `  redrive explain --preset delayed-backoff --original 10s
  redrive explain --attempts 5 --steps 1s,5s,60s
  redrive explain rabbit orders --config redrive.yaml`,
		RunE: func(_ *cobra.Command, args []string) error {
			x, err := policy.explain()
			if err == nil && len(args) > 0 {
				err = a.explainBroker(&x, args[0], args[1:])
			}
			if err != nil {
				return err
			}
			return a.printOne(x, x.text)
		},
	}
	cmd.Flags().StringVar(&policy.preset, "preset", "", presetNames)
	must(cmd.RegisterFlagCompletionFunc("preset", cobra.FixedCompletions(
		strings.FieldsFunc(strings.Replace(presetNames, " or ", ", ", 1), func(r rune) bool { return r == ',' || r == ' ' }),
		cobra.ShellCompDirectiveNoFileComp)))
	cmd.Flags().IntVar(&policy.attempts, "attempts", 0, "runs including the first (default 4, or the preset's)")
	cmd.Flags().StringSliceVar(&policy.steps, "steps", nil,
		"delays before the retries, the last one repeated (default exponential)")
	policy.original = time.Second
	cmd.Flags().Var((*age)(&policy.original), "original",
		"first-delivery delay, the base of an exponential backoff")
	return cmd
}

const presetNames = "laravel, delayed-backoff, store-only, service-bus or ttl-cycle"

// explain computes the timeline with the pipeline's own code.
func (p *policyFlags) explain() (explained, error) {
	cfg, ok := map[string]middleware.Config{
		"":                {MaxAttempts: 4, Backoff: middleware.FromOriginalDelay(time.Second)},
		"laravel":         middleware.Laravel(5),
		"delayed-backoff": middleware.DelayedBackoff(3, time.Second),
		"store-only":      middleware.StoreOnly(),
		"service-bus":     middleware.ServiceBus(3, time.Second, 5*time.Second, time.Minute),
		"ttl-cycle":       middleware.TTLCycle(3, 5*time.Second),
	}[p.preset]
	if !ok {
		return explained{}, usagef("--preset %s: %s", p.preset, presetNames)
	}
	if p.attempts < 0 {
		return explained{}, usagef("--attempts %d: must not be negative", p.attempts)
	}
	cfg.MaxAttempts = cmp.Or(p.attempts, cfg.MaxAttempts)
	var steps []time.Duration
	for _, text := range p.steps {
		d, err := parseAge(text)
		if err != nil {
			return explained{}, usagef("--steps: %v", err)
		}
		steps = append(steps, d)
	}
	if len(steps) > 0 {
		cfg.Backoff = middleware.Steps(steps...)
	}
	x := explained{Policy: fmt.Sprint(cfg.Backoff), Attempts: []attemptView{}}
	for i, at := range middleware.Timeline(cfg.Backoff, cfg.MaxAttempts, p.original) {
		x.Attempts = append(x.Attempts, attemptView{i + 1, at.Seconds(), at})
	}
	return x, nil
}

// explainBroker adds the names that the services use, which depend on their configuration and not on Operating.
func (a *app) explainBroker(x *explained, name string, topics []string) error {
	cfg, plan, err := a.planned(name, topics)
	if err != nil {
		return err
	}
	x.Broker, x.Topology = name, plan
	for _, topic := range topics {
		n := cfg.Naming.For(topic, cfg.Group)
		view := consumerView{topic, cfg.Group, n.Queue, n.Retry(0), n.Dead}
		if onWatermill(cfg.URL) {
			view = watermillView(&cfg, topic, n)
		}
		x.Consumers = append(x.Consumers, view)
	}
	return nil
}

// onWatermill reports whether a URL opens one of Watermill's own adapters.
func onWatermill(url string) bool {
	return strings.HasPrefix(url, watermill.Scheme) || strings.HasPrefix(url, gochannel.Scheme)
}

// watermillView names what watermill-amqp reads by the naming scheme, elsewhere the topic itself, and the queue of the
// second broker in which retries wait.
func watermillView(b *brokers.Config, topic string, n brokers.Names) consumerView {
	view := consumerView{topic, b.Group, topic, watermill.RetryTopic(b.URL, b.Params["delays-server"], topic, b.Group), n.Dead}
	if strings.HasPrefix(b.URL, watermillamqp.Scheme) {
		view.Queue = n.Queue
	}
	if env, ok := b.Params["delays-env"]; ok {
		url := os.Getenv(env)
		if view.Retry += " of " + brokers.Redact(url); url == "" {
			view.Retry = "nowhere: " + env + " is not set, so nothing can be delayed"
		}
	}
	return view
}

// planned returns a broker's configuration as the consumers of topics have it, and the plan of what they need, empty on
// brokers without a topology of ours. An empty group is that of the configuration, and never the collector's default.
func planned(b *config.Broker, group string, topics ...string) (cfg brokers.Config, plan string, err error) {
	driver, ok := brokers.Lookup(b.Scheme())
	if !ok {
		return cfg, "", fmt.Errorf("%w: %q", brokers.ErrUnknownScheme, b.Scheme())
	}
	if cfg, err = b.Resolve(driver.Params()); err != nil {
		return cfg, "", err
	}
	cfg.Group = cmp.Or(group, cfg.Group)
	if _, err = cfg.Subscriber(driver.Params()); cfg.Group == "" && strings.HasSuffix(b.Scheme(), kafka.Scheme) {
		err = errors.New("every consumer of Kafka has a group")
	}
	if err != nil {
		return cfg, "", fmt.Errorf("%w: here it is --group, the broker's group, or, except on RabbitMQ, origin.consumer "+
			"of a source", err)
	}
	switch b.Scheme() {
	case rabbitmq.Scheme, rabbitmq.SchemeTLS:
		p, err := rabbitmq.PlanConfig(cfg, topics...)
		return cfg, p.String(), err
	case kafka.Scheme:
		p, err := kafka.PlanConfig(cfg, topics...)
		return cfg, p.String(), err
	}
	return cfg, "", nil
}

// planned is the function planned for a broker of the configuration and the group of --group.
func (a *app) planned(name string, topics []string) (cfg brokers.Config, plan string, err error) {
	file, err := a.read(config.LoadBrokers) // a store has nothing to do with it
	if err != nil {
		return cfg, "", err
	}
	b, ok := file.Brokers[name]
	if !ok {
		return cfg, "", usagef("no broker %q: the configuration has %s", name,
			cmp.Or(strings.Join(file.Names(), ", "), "none"))
	}
	for _, s := range file.Collector.Sources {
		if s.Broker == name && slices.Contains(topics, s.Topic) {
			return cfg, "", usagef("%s is a source of the collector, its only consumer: redrive doctor checks it", s.Topic)
		}
	}
	if cfg, plan, err = planned(&b, a.flags.group, topics...); err != nil {
		err = usagef("broker %s: %v", name, err)
	}
	return cfg, plan, err
}

func (x *explained) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "backoff: %s\n\n", x.Policy)
	for _, attempt := range x.Attempts {
		name := "retry"
		switch attempt.Number {
		case 1:
			name = "first"
		case len(x.Attempts):
			name = "last"
		}
		fmt.Fprintf(&out, "%10s  attempt %d (%s)\n", attempt.at, attempt.Number, name)
	}
	if n := len(x.Attempts); n > 0 {
		fmt.Fprintf(&out, "%10s  dead letter\n", x.Attempts[n-1].at)
	}
	for _, c := range x.Consumers {
		fmt.Fprintf(&out, "\ntopic %s\n  read from   %s\n  waits in    %s\n  dies in     %s\n", c.Topic, c.Queue, c.Retry,
			c.Dead)
	}
	if x.Topology != "" {
		fmt.Fprintf(&out, "\n%s", x.Topology)
	}
	return out.String()
}
