package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/brokers/watermill/gochannel"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/config"
)

type finding struct {
	What     string `json:"what"`
	Severity string `json:"severity"`
	Finding  string `json:"finding"`
	Remedy   string `json:"remedy,omitempty"`
}

var findingColumns = []column[finding]{
	{title: "", value: func(f finding) string { return f.Severity }},
	{title: "What", value: func(f finding) string { return oneLine(f.What, 40) }},
	{title: "Finding", gives: folds, value: func(f finding) string { return oneLine(f.Finding, 120) }},
	{title: "Remedy", gives: folds, value: func(f finding) string { return oneLine(f.Remedy, 160) }},
}

func (a *app) doctorCommand() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "doctor", Short: "Find what is wrong with store, brokers and sources, each with its remedy", Args: cobra.NoArgs,
		Long: "Look at the store, the brokers and the dead letter queues of the configuration, or of a server. Nothing is " +
			"changed. The exit code is\n1 when something is a problem, and 0 when there are only warnings.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &doctor{app: a, timeout: timeout}
			if err := d.examine(cmd.Context()); err != nil {
				return err
			}
			if err := printList(a, d.findings, findingColumns); err != nil {
				return err
			}
			if d.problems > 0 {
				return &codedError{exitError, plural(d.problems, "problem")}
			}
			return nil
		},
	}
	timeout = 10 * time.Second
	cmd.Flags().Var((*age)(&timeout), "timeout", "how long to wait for each answer")
	return cmd
}

type doctor struct {
	app      *app
	timeout  time.Duration
	findings []finding
	problems int
	server   *api                      // nil without
	opened   map[string]brokers.Broker // those that answer
}

func (d *doctor) ok(what, format string, args ...any) {
	d.findings = append(d.findings, finding{what, "ok", fmt.Sprintf(format, args...), ""})
}

func (d *doctor) warn(what, text, remedy string) {
	d.findings = append(d.findings, finding{what, "warning", text, remedy})
}

func (d *doctor) problem(what string, err error, remedy string) {
	d.problems++
	d.findings = append(d.findings, finding{what, "problem", unprefixed(err), remedy})
}

func (d *doctor) examine(ctx context.Context) error {
	p, err := d.app.profile()
	if p != nil && err == nil {
		d.server, err = connected(p, nil)
	}
	if err != nil {
		return err
	}
	if d.server != nil {
		d.examineServer(ctx)
		d.examineReaders(ctx, &config.Config{})
		return ctx.Err()
	}
	cfg, err := d.app.configuration()
	if err != nil {
		d.problem("configuration", err, "correct the file; redrive config schema describes it, redrive config validate "+
			"checks it")
		return nil
	}
	d.ok("configuration", "%s, %s", plural(len(cfg.Brokers), "broker"), plural(len(cfg.Collector.Sources), "source"))
	if len(cfg.Brokers) > 0 && len(cfg.Collector.Sources) == 0 {
		d.warn("configuration", "brokers but no sources: nothing is collected",
			"name the dead letter queues under collector.sources")
	}
	d.examineStore(ctx)
	for _, name := range cfg.Names() {
		b := cfg.Brokers[name]
		d.examineBroker(ctx, cfg, name, &b)
	}
	d.examineReaders(ctx, cfg)
	return ctx.Err()
}

// within runs a query with the time limit. Each client reports a timeout in its own words; here all are the same.
func (d *doctor) within(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("no answer within %s", d.timeout))
	defer cancel()
	err := ask(ctx)
	if cause := context.Cause(ctx); err != nil && ctx.Err() != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// examineServer reports what a server knows of its store, brokers and sources.
func (d *doctor) examineServer(ctx context.Context) {
	err := d.within(ctx, func(ctx context.Context) error {
		health, err := d.server.GetHealth(ctx)
		if err != nil {
			return err
		}
		for _, what := range slices.Sorted(maps.Keys(health.Components)) {
			if fault := health.Components[what].Error; fault != "" {
				d.problem(what, errors.New(fault), remedyOf(errors.New(fault)))
			} else {
				d.ok(what, "answers the server")
			}
		}
		return d.examineEntries(ctx, d.server)
	})
	if err != nil {
		d.problem("server", err, "check the server's URL, your token, and that the server runs")
	}
}

func (d *doctor) examineStore(ctx context.Context) {
	const what = "store"
	var took time.Duration
	err := d.within(ctx, func(ctx context.Context) error {
		letters, err := d.app.openExisting(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		err = letters.Store().Ping(ctx)
		took = time.Since(began).Round(time.Millisecond)
		return err
	})
	if err != nil {
		d.problem(what, err, "check store.url and that the database runs; redrive migrate creates the tables or updates them")
		return
	}
	if took > time.Second {
		d.warn(what, fmt.Sprintf("answers in %s", took),
			"a store that answers in more than a second slows every dead letter down: look at the database's load")
	} else {
		d.ok(what, "opens and accepts writes")
	}
	err = d.within(ctx, func(ctx context.Context) error {
		manager, err := d.app.manager(ctx)
		if err != nil {
			return err
		}
		return d.examineEntries(ctx, manager)
	})
	if err != nil {
		d.problem(what, err, "redrive migrate brings the tables up to date")
	}
}

// tooMany is the number of pending entries that is an alert.
const tooMany = 1000

func (d *doctor) examineEntries(ctx context.Context, manager *api) error {
	stats, err := manager.GetStats(ctx, wire.StatsQuery{})
	if err != nil {
		return err
	}
	c := stats.Counts
	if c.Pending > tooMany {
		d.warn("dead letters", fmt.Sprintf("%d wait for a decision", c.Pending),
			"redrive dlq groups shows the causes; redrive or discard by group")
	} else {
		d.ok("dead letters", "%d pending, %d in all", c.Pending, c.Total())
	}
	if c.Parked > 0 {
		d.warn("dead letters", fmt.Sprintf("%d are parked: their redrives are used up, or someone parked them", c.Parked),
			"redrive dlq list --status parked; fix, redrive by id, or discard them")
	}
	overdue, err := overdueEntries(ctx, manager, time.Now())
	if err != nil {
		return err
	}
	if overdue > 0 {
		d.warn("dead letters", fmt.Sprintf("%d were redriven and their outcome never came", overdue),
			"is the consumer running, with this store as its dead letter sink? If it cannot report, resolve them, and "+
				"redrive with --close-on-publish")
	}
	list, err := manager.ListRuns(ctx, wire.RunFilter{States: []redrive.State{
		redrive.Stopped, redrive.AwaitingApproval, redrive.Paused, redrive.Preparing,
	}}, wire.Page{})
	if err != nil {
		return err
	}
	for i := range list.Runs {
		r := &list.Runs[i]
		if r.State == redrive.Preparing && !r.Pausing() {
			continue // a server does that
		}
		text := stateOf(r)
		if r.Cause != "" {
			text += ": " + r.Cause
		}
		remedy := "redrive runs resume " + r.ID + ", or cancel it"
		if r.State == redrive.AwaitingApproval {
			remedy = "redrive runs approve " + r.ID + ", by someone other than " + r.CreatedBy
		}
		d.warn("run "+r.ID, text, remedy)
	}
	return nil
}

// overdueEntries counts the entries with an expired lease among the oldest thousand.
func overdueEntries(ctx context.Context, m *api, now time.Time) (int, error) {
	list, err := m.ListEntries(ctx, wire.Filter{Statuses: []dlq.Status{dlq.Retrying}},
		wire.Page{Order: driver.OldestFirst, Limit: driver.MaxPage})
	if err != nil {
		return 0, err
	}
	inTime := func(e wire.Entry) bool { return now.Before(e.LeaseUntil) }
	return len(slices.DeleteFunc(list.Entries, inTime)), nil
}

func (d *doctor) examineBroker(ctx context.Context, cfg *config.Config, name string, b *config.Broker) {
	what := "broker " + name
	if scheme := b.Scheme(); scheme == memory.Scheme || scheme == gochannel.Scheme {
		d.warn(what, scheme+":// holds nothing that another process has sent", "name a broker that your services use")
		return
	}
	if path := missingFile(b.URL); path != "" {
		d.problem(what, errors.New("there is no file "+path), "check the path; a service creates the file when it starts")
		return
	}
	operating := b.Operating()
	operating.Logger = d.app.logger()
	if driver, ok := brokers.Lookup(b.Scheme()); ok && slices.ContainsFunc(driver.Params(),
		func(p brokers.Param) bool { return p.Name == "migrate" }) && !strings.Contains(b.URL, "migrate=") {
		operating.Params = brokers.Params{"migrate": "false"} // a SQL queue would create its tables
		maps.Copy(operating.Params, b.Params)
	}
	var broker brokers.Broker
	err := d.within(ctx, func(ctx context.Context) (err error) {
		if broker, err = brokers.OpenConfig(ctx, operating); err != nil {
			return err
		}
		return broker.Ping(ctx)
	})
	if broker != nil {
		d.app.onClose(broker.Close)
	}
	if err != nil {
		d.problem(what, err, remedyOf(err))
		return
	}
	d.ok(what, "answers (%s)", b.Scheme())
	if d.opened == nil {
		d.opened = map[string]brokers.Broker{}
	}
	d.opened[name] = broker
	if broker.Capabilities().MaxDelay == 0 {
		d.warn(what, "it cannot delay: its services can retry nothing, and a redrive cannot reach one consumer alone",
			"set "+watermill.DelaysEnv+" to the URL of a broker that stores delayed messages, such as postgres://")
	}
	for _, s := range cfg.Collector.Sources {
		if s.Broker == name {
			d.examineSource(ctx, broker, name, s.Topic)
		}
	}
}

func remedyOf(err error) string {
	text := strings.ToLower(err.Error())
	switch {
	case strings.Contains(text, "refused"), strings.Contains(text, "no such host"), strings.Contains(text, "no answer"),
		strings.Contains(text, "timeout"), strings.Contains(text, "no servers available"):
		return "is the server running, and the host and port right? May this machine reach it?"
	case strings.Contains(text, "403"), strings.Contains(text, "access"), strings.Contains(text, "auth"),
		strings.Contains(text, "sasl"):
		return "check username and password, and the user's permissions"
	case strings.Contains(text, "certificate"), strings.Contains(text, "tls"), strings.Contains(text, "x509"):
		return "check the certificates: the authority's file, and the name in the server's certificate"
	default:
		return "check the broker's entry in the configuration"
	}
}

// examineSource checks that a dead letter queue exists and keeps its messages, where the broker can tell without
// creating it.
func (d *doctor) examineSource(ctx context.Context, broker brokers.Broker, name, topic string) {
	what := "source " + name + "/" + topic
	var found []finding
	add := func(text string, missing bool) {
		remedy := "" // it names one
		if missing {
			remedy = "a service creates it at its first dead letter; otherwise the name is wrong: compare it with the " +
				"broker's list"
		}
		found = append(found, finding{what, "warning", text, remedy})
	}
	checked := true
	err := d.within(ctx, func(ctx context.Context) error {
		switch driver := broker.(type) {
		case *rabbitmq.Broker:
			list, err := driver.Check(ctx, rabbitmq.Plan{Adopted: []string{topic}})
			for _, f := range list {
				add(f.String(), f.Missing)
			}
			return err
		case *kafka.Broker:
			list, err := driver.Check(ctx, kafka.Plan{Topics: []kafka.Topic{{Name: topic}}})
			for _, f := range list {
				add(f.String(), f.Missing)
			}
			return err
		}
		checked = false
		return nil
	})
	switch d.findings = append(d.findings, found...); {
	case err != nil:
		d.problem(what, err, remedyOf(err))
	case checked && len(found) == 0:
		d.ok(what, "exists")
	}
}
