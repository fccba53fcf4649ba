package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/brokers"
)

// Plan describes the topics that consumers, and producers of delayed messages, need on the cluster.
type Plan struct {
	Topics []Topic
}

// Topic is one topic of a Plan.
type Topic struct {
	Name string
	// Purpose in a few words, for display.
	Purpose string
	// Partitions; 0 means those of Like, or the broker's default.
	Partitions int32
	// Like is the topic with which this one must agree in the number of partitions, or "".
	Like string
	// Replication factor; 0 means the broker's default.
	Replication int16
	// Config holds the settings that are not the broker's defaults.
	Config map[string]string
}

// String shows the plan, one topic per line, as it would be created.
func (p Plan) String() string {
	var out strings.Builder
	for _, t := range p.Topics {
		fmt.Fprintf(&out, "topic %s", t.Name)
		switch {
		case t.Partitions > 0:
			fmt.Fprintf(&out, "  partitions=%d", t.Partitions)
		case t.Like != "":
			fmt.Fprintf(&out, "  partitions as %s", t.Like)
		}
		if t.Replication > 0 {
			fmt.Fprintf(&out, "  replication=%d", t.Replication)
		}
		for _, name := range slices.Sorted(maps.Keys(t.Config)) {
			fmt.Fprintf(&out, "  %s=%s", name, t.Config[name])
		}
		fmt.Fprintf(&out, "  (%s)\n", t.Purpose)
	}
	return out.String()
}

// PlanConfig plans the topics that consumers of topics may need under cfg, without a connection. cfg.Group, if set, is
// their group. It returns faults of cfg, and names that are invalid in Kafka.
func PlanConfig(cfg brokers.Config, topics ...string) (Plan, error) {
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return Plan{}, err
	}
	t, err := newTransport(resolved)
	if err != nil {
		return Plan{}, fmt.Errorf("kafka: %w", err)
	}
	p := t.plan(topics...)
	var faults []error
	for _, t := range p.Topics {
		faults = append(faults, checkTopic(t.Name))
	}
	if err := errors.Join(faults...); err != nil {
		return Plan{}, fmt.Errorf("kafka: %w", err)
	}
	return p, nil
}

// Plan plans the topics that consumers of topics may need, in the broker's own group: each topic itself, a retry topic
// for every wait, the dead letter topic, and with order=key the parking topic.
func (b *Broker) Plan(topics ...string) Plan { return b.t.plan(topics...) }

func (b *transport) plan(topics ...string) Plan {
	var p Plan
	for _, topic := range topics {
		names, anyGroup := b.cfg.Naming.For(topic, b.cfg.Group), b.cfg.Naming.For(topic, "")
		p.add(b.source(topic), "")
		for _, wait := range b.tiers {
			p.add(b.tier(names.Retry(wait), wait, -1), topic)
		}
		for _, wait := range grid {
			s := b.tier(anyGroup.Delayed(wait), wait, -1)
			s.purpose = "for first-delivery delays"
			p.add(s, topic)
		}
		p.add(b.forever(names.Dead, "the dead letter topic", -1), topic)
		if b.cfg.Params.String("order") == "key" {
			p.add(b.parking(topic, b.cfg.Group, -1), topic)
		}
	}
	return p
}

func (p *Plan) add(s spec, like string) {
	if slices.ContainsFunc(p.Topics, func(t Topic) bool { return t.Name == s.name }) {
		return
	}
	p.Topics = append(p.Topics, Topic{
		Name: s.name, Purpose: s.purpose, Partitions: max(s.partitions, 0), Like: like,
		Replication: max(s.replication, 0), Config: s.config(),
	})
}

// Apply creates the missing topics of p, regardless of auto-create. Existing ones are neither changed nor deleted;
// Check reports how they differ.
func (b *Broker) Apply(ctx context.Context, p Plan) error {
	for _, t := range p.Topics {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("kafka: apply: %w", err)
		}
		s := spec{name: t.Name, partitions: -1, replication: -1, purpose: t.Purpose}
		s.config = func() map[string]string { return t.Config }
		switch {
		case t.Partitions > 0:
			s.partitions = t.Partitions
		case t.Like != "":
			n, err := b.t.topics.existing(ctx, spec{name: t.Like, purpose: "the topic itself"})
			if err != nil {
				return fmt.Errorf("kafka: apply: %w", err)
			}
			s.partitions = n
		}
		if t.Replication > 0 {
			s.replication = t.Replication
		}
		if _, err := b.t.topics.create(ctx, s); err != nil {
			return fmt.Errorf("kafka: apply: %w", err)
		}
		// The next topic may refer to this one, and a Check that follows must find it.
		if _, err := b.t.topics.count(ctx, s.name, appearing); err != nil {
			return fmt.Errorf("kafka: apply: topic %s was created but does not appear: %w", s.name, err)
		}
	}
	return nil
}

// Finding is one difference between a plan and the cluster.
type Finding struct {
	Topic string
	// Missing means that there is no such topic. Otherwise Difference explains how it differs, and what to do.
	Missing    bool
	Difference string
}

// String describes the finding.
func (f Finding) String() string {
	if f.Missing {
		return fmt.Sprintf("topic %q is missing", f.Topic)
	}
	return fmt.Sprintf("topic %q: %s", f.Topic, f.Difference)
}

// Check compares p with the cluster and changes nothing. It reports topics that are missing, have too few partitions,
// or have settings that lose messages or break waits.
func (b *Broker) Check(ctx context.Context, p Plan) ([]Finding, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("kafka: check: %w", err)
	}
	var names []string
	for _, t := range p.Topics {
		names = append(names, t.Name)
		if t.Like != "" {
			names = append(names, t.Like)
		}
	}
	existing, err := b.t.topics.describe(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("kafka: check: list topics: %w", err)
	}
	configs, err := b.t.topics.settings(ctx, existing)
	if err != nil {
		return nil, fmt.Errorf("kafka: check: settings of topics: %w", err)
	}
	var findings []Finding
	for _, t := range p.Topics {
		have, ok := existing[t.Name]
		if !ok || isGone(have.err) {
			findings = append(findings, Finding{Topic: t.Name, Missing: true})
			continue
		}
		if need := existing[t.Like].partitions; have.partitions < need {
			findings = append(findings, Finding{Topic: t.Name, Difference: fmt.Sprintf(
				"has %d partitions and %s has %d: add partitions", have.partitions, t.Like, need)})
		}
		for _, name := range slices.Sorted(maps.Keys(t.Config)) {
			if why := differs(name, t.Config[name], configs[t.Name]); why != "" {
				findings = append(findings, Finding{Topic: t.Name, Difference: why})
			}
		}
	}
	return findings, nil
}

// differs returns what is wrong with a topic's setting, or "". settings are the topic's explicit ones.
func differs(name, want string, settings map[string]string) string {
	have, set := settings[name]
	if !set {
		have = "the broker's default"
	}
	switch {
	case have == want:
		return ""
	case name == "message.timestamp.type":
		return fmt.Sprintf("%s is %s: waits are measured on the clocks of producers; set %s", name, have, want)
	case name == "cleanup.policy" && strings.Contains(have, "compact"):
		return fmt.Sprintf("%s is %s: a message is dropped when another one of its key arrives; set %s", name, have, want)
	case name == "retention.ms" && have != "-1":
		return fmt.Sprintf("%s is %s: messages may be deleted before they are due or inspected; set %s", name, have, want)
	case name == "max.message.bytes" && set:
		return fmt.Sprintf("%s is %s: messages near the limit have no room for their error; set %s", name, have, want)
	}
	return ""
}
