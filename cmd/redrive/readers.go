package main

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/config"
)

// mostTopics limits the topics of pending dead letters whose readers are looked up, the largest first, and
// lettersOfTopic the letters of each, the oldest first: a topic has few consumers.
const (
	mostTopics     = 20
	lettersOfTopic = 50
)

// examineReaders finds targets of pending dead letters that no consumer reads: redriven messages would wait there.
func (d *doctor) examineReaders(ctx context.Context, cfg *config.Config) {
	const what = "readers"
	var targets []redrive.Destination
	err := d.within(ctx, func(ctx context.Context) error {
		o, err := d.previewer(cfg)
		if err != nil || o == nil {
			return err
		}
		targets, err = targetsOfPending(ctx, o)
		return err
	})
	if err != nil {
		d.warn(what, "the readers of the targets of pending dead letters are unknown: "+unprefixed(err), remedyOf(err))
	}
	read, unknown := 0, 0
	for i := range targets {
		switch t := &targets[i]; {
		case t.Warning() != "":
			d.warn(what+" of "+t.Topic, t.Warning(),
				"start the consumer before you redrive; where it is gone for good, resolve or discard its dead letters")
		case t.Readers > 0:
			read++
		default:
			unknown++
		}
	}
	if read > 0 {
		d.ok(what, "%s of pending dead letters: %d with a reader, %d whose broker does not report readers",
			plural(len(targets), "target"), read, unknown)
	}
}

// previewer previews redrives: a server if one is given, otherwise the store and the brokers that respond. It is nil
// without them.
func (d *doctor) previewer(cfg *config.Config) (operator, error) {
	if p, err := d.app.profile(); err != nil || p != nil {
		return d.app.connected(p, err)
	}
	opened := maps.Clone(d.opened)
	for name, b := range cfg.Brokers { // of two of one scheme, the wrong one might be asked
		if d.opened[name] == nil {
			maps.DeleteFunc(opened, func(other string, _ brokers.Broker) bool {
				of := cfg.Brokers[other]
				return of.Scheme() == b.Scheme()
			})
		}
	}
	if d.app.letters == nil || len(opened) == 0 {
		return nil, nil
	}
	router, err := newRouter(cfg, d.app.letters, opened, d.app.logger())
	if err != nil {
		return nil, err
	}
	return d.app.local(d.app.letters, router)
}

// openingTime is how long a dry run waits for brokers that it can do without.
const openingTime = 2 * time.Second

// looker is manager for a dry run, with the brokers if all of them open, to see whether a consumer reads the
// destinations.
func (a *app) looker(ctx context.Context) (operator, error) {
	m, err := a.manager(ctx)
	if _, here := m.(*local); err != nil || !here || len(a.cfg.Brokers) == 0 {
		return m, err
	}
	opening, cancel := context.WithTimeout(ctx, openingTime)
	defer cancel()
	if r, err := a.redriver(opening); err == nil {
		return r, nil
	}
	return m, nil
}

// targetsOfPending are the destinations of pending dead letters, each once.
func targetsOfPending(ctx context.Context, o operator) ([]redrive.Destination, error) {
	all, err := o.PreviewRun(ctx, redrive.Spec{}, lettersOfTopic)
	if err != nil {
		return nil, fmt.Errorf("pending dead letters: %w", err)
	}
	targets := all.Destinations
	known := map[redrive.Destination]bool{}
	note := func(d redrive.Destination) bool {
		d.Readers = 0 // may have changed
		noted := known[d]
		known[d] = true
		return !noted
	}
	for _, t := range targets {
		note(t)
	}
	if int64(len(all.Sample)) == all.Count {
		return targets, nil
	}
	for _, topic := range all.Topics[:min(len(all.Topics), mostTopics)] {
		if topic.Topic == "" {
			continue
		}
		of, err := o.PreviewRun(ctx, redrive.Spec{Filter: dlq.Filter{Topic: topic.Topic}}, lettersOfTopic)
		if err != nil {
			return targets, fmt.Errorf("pending dead letters of %s: %w", topic.Topic, err)
		}
		for _, t := range of.Destinations {
			if note(t) {
				targets = append(targets, t)
			}
		}
	}
	return targets, nil
}
