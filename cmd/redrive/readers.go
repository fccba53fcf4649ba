package main

import (
	"context"
	"fmt"
	"maps"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/scheme"
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
	var targets []wire.RunDestination
	err := d.within(ctx, func(ctx context.Context) error {
		m, err := d.previewer(cfg)
		if err != nil || m == nil {
			return err
		}
		targets, err = targetsOfPending(ctx, m)
		return err
	})
	if err != nil {
		d.warn(what, "the readers of the targets of pending dead letters are unknown: "+unprefixed(err), remedyOf(err))
	}
	read, unknown := 0, 0
	for i := range targets {
		switch t := &targets[i]; {
		case t.Readers == 0:
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
func (d *doctor) previewer(cfg *config.Config) (*api, error) {
	if d.server != nil {
		return d.server, nil
	}
	opened := maps.Clone(d.opened)
	for name, b := range cfg.Brokers { // of two of one scheme, the wrong one might be asked
		if d.opened[name] == nil {
			maps.DeleteFunc(opened, func(other string, _ brokers.Broker) bool {
				of := cfg.Brokers[other]
				return scheme.Same(of.Scheme(), b.Scheme())
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

// targetsOfPending are the destinations of pending dead letters, each once.
func targetsOfPending(ctx context.Context, m *api) ([]wire.RunDestination, error) {
	all, err := m.PreviewRun(ctx, wire.RunSpec{Filter: wire.Filter{Statuses: []wire.Status{wire.Pending}}}, lettersOfTopic)
	if err != nil {
		return nil, fmt.Errorf("pending dead letters: %w", err)
	}
	targets := all.Destinations
	known := map[wire.RunDestination]bool{}
	note := func(d wire.RunDestination) bool {
		d.Readers, d.Unreachable = 0, "" // may have changed
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
		of, err := m.PreviewRun(ctx, wire.RunSpec{Filter: wire.Filter{Topic: topic.Topic}}, lettersOfTopic)
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
