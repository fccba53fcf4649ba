package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/internal/wait"
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
