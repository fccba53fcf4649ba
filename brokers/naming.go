package brokers

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultGroup is the group of a consumer without one, on brokers that do not require a group. It adds nothing to the
// names that a [NameScheme] generates.
const DefaultGroup = "default"

// NameScheme generates the names of queues, topics and exchanges from the topic and the group of a consumer. Each field
// except Preset, Project and Patterns is a template: {topic}, {group}, {project} and {queue} (the result of Queue) are
// replaced, in templates that depend on Exchange also {exchange}, and in Retry and Delayed also {delay}, the delay in
// milliseconds. A separator inside the braces disappears with an empty variable: {topic}{.group}.
//
// The zero value means [DefaultNames]. An empty template is taken from the preset, so that single names can be changed:
//
//	brokers.NameScheme{Preset: "laravel", Dead: "{queue}_failed"}
type NameScheme struct {
	// Preset names the scheme for empty templates; see Presets. Defaults to "default".
	Preset string `yaml:"preset"`
	// Project is {project}, which separates the names of several projects or tenants on one broker.
	Project string `yaml:"project"`
	// Exchange is where producers publish on RabbitMQ. Empty means the default exchange, where a topic is a queue's name;
	// with the default preset, which allows several groups per topic, it means the direct exchange "redrive".
	Exchange string `yaml:"exchange"`
	// Queue is what one consumer reads: a queue on RabbitMQ, the topic itself on the others.
	Queue string `yaml:"queue"`
	// Retry is where a message waits for its retry.
	Retry string `yaml:"retry"`
	// RetryExchange leads to Retry on RabbitMQ. Empty, or with an {exchange} that is empty, it means the default exchange.
	RetryExchange string `yaml:"retry_exchange"`
	// Delayed is where a message waits for its first delivery. Empty means the same place as for retries.
	Delayed string `yaml:"delayed"`
	// Dead is where dead letters are stored.
	Dead string `yaml:"dead"`
	// DeadExchange leads to Dead on RabbitMQ. Empty means the default exchange.
	DeadExchange string `yaml:"dead_exchange"`
	// Patterns means that topics are event names, and that Subscribe accepts AMQP topic patterns of them: a * matches one
	// word between dots, a # any number of words.
	Patterns bool `yaml:"patterns"`
}

// Names are the names that belong to one consumer.
type Names struct {
	// Queue that the consumer reads.
	Queue string
	// Exchange that producers publish to; "" is the default exchange. With the default preset, package rabbitmq sets
	// "redrive".
	Exchange string
	// RetryExchange leads to the retry queues; "" is the default exchange.
	RetryExchange string
	// DeadExchange leads to Dead; "" is the default exchange.
	DeadExchange string
	// Dead is the dead letter queue or topic.
	Dead string

	retry, delayed template
	vars           map[string]string
}

// Retry returns the name of the place where a message waits for delay before its retry. With a delay of 0 the name does
// not include the delay.
func (n Names) Retry(delay time.Duration) string { return n.tier(n.retry, delay) }

// Delayed returns the name of the place where a message waits for delay before its first delivery.
func (n Names) Delayed(delay time.Duration) string { return n.tier(n.delayed, delay) }

func (n Names) tier(t template, delay time.Duration) string {
	return t.expand(func(name string) string {
		if name == "delay" {
			if delay <= 0 {
				return ""
			}
			return strconv.FormatInt(delay.Milliseconds(), 10)
		}
		return n.vars[name]
	})
}

// For returns the names of the consumer group on topic. The scheme must be valid; see Validate.
func (s NameScheme) For(topic, group string) Names { return s.names(topic, group, "") }

// ForQueue returns the names for a queue whose name is known, for example from an envelope.Origin on RabbitMQ.
func (s NameScheme) ForQueue(topic, queue string) Names { return s.names(topic, "", queue) }

func (s NameScheme) names(topic, group, queue string) Names {
	s = s.filled()
	if group == DefaultGroup {
		group = ""
	}
	vars := map[string]string{"topic": topic, "group": group, "project": s.Project}
	lookup := func(name string) string { return vars[name] }
	if queue == "" {
		queue = template(s.Queue).expand(lookup)
	}
	vars["queue"] = queue
	vars["exchange"] = template(s.Exchange).expand(lookup)
	exchange := func(t string) string {
		if vars["exchange"] == "" && template(t).requires("exchange") {
			return "" // what belongs to the default exchange has no exchange either
		}
		return template(t).expand(lookup)
	}
	return Names{
		Queue:         queue,
		Exchange:      vars["exchange"],
		RetryExchange: exchange(s.RetryExchange),
		DeadExchange:  exchange(s.DeadExchange),
		Dead:          template(s.Dead).expand(lookup),
		retry:         template(s.Retry),
		delayed:       template(cmp.Or(s.Delayed, s.Retry)),
		vars:          vars,
	}
}

// PerDelay reports whether every delay has a retry queue with its number in the name, that is, whether Retry has
// {delay} without a separator inside the braces.
func (s NameScheme) PerDelay() bool { return template(s.filled().Retry).requires("delay") }

// filled takes empty templates from the preset. An unknown preset, which Validate reports, fills nothing.
func (s NameScheme) filled() NameScheme {
	s.Preset = cmp.Or(s.Preset, "default")
	p, ok := presets[s.Preset]
	if !ok {
		return s
	}
	base := p()
	for _, f := range []struct{ have, from *string }{
		{&s.Exchange, &base.Exchange},
		{&s.Queue, &base.Queue},
		{&s.Retry, &base.Retry},
		{&s.RetryExchange, &base.RetryExchange},
		{&s.Delayed, &base.Delayed},
		{&s.Dead, &base.Dead},
		{&s.DeadExchange, &base.DeadExchange},
	} {
		if *f.have == "" {
			*f.have = *f.from
		}
	}
	s.Patterns = s.Patterns || base.Patterns
	return s
}

// Validate reports every fault of the scheme: an unknown preset or variable, a template that cannot be parsed, a
// {project} without Project, and names that coincide, which would make a message its own dead letter.
func (s NameScheme) Validate() error {
	if s.Preset != "" && presets[s.Preset] == nil {
		return fmt.Errorf("naming: unknown preset %q: known are %s", s.Preset, strings.Join(Presets(), ", "))
	}
	full := s.filled()

	var faults []error
	consumer := []string{"topic", "group", "project"}
	around := append(slices.Clone(consumer), "queue", "exchange")
	for _, f := range []struct {
		field, template string
		vars            []string
	}{
		{"exchange", full.Exchange, []string{"project"}},
		{"queue", full.Queue, consumer},
		{"retry", full.Retry, append(slices.Clone(around), "delay")},
		{"retry_exchange", full.RetryExchange, around},
		{"delayed", full.Delayed, append(slices.Clone(around), "delay")},
		{"dead", full.Dead, around},
		{"dead_exchange", full.DeadExchange, around},
	} {
		if err := template(f.template).check(f.vars); err != nil {
			faults = append(faults, fmt.Errorf("naming: %s %q: %w", f.field, f.template, err))
		}
		if full.Project == "" && template(f.template).requires("project") {
			faults = append(faults, fmt.Errorf("naming: %s %q has {project}, but no project is set", f.field, f.template))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}

	n := full.For("topic", "group")
	for _, pair := range []struct{ a, b, fields string }{
		{n.Queue, n.Retry(0), "queue and retry"},
		{n.Queue, n.Dead, "queue and dead"},
		{n.Retry(0), n.Dead, "retry and dead"},
		{n.Delayed(0), n.Dead, "delayed and dead"},
		{n.Queue, n.Delayed(0), "queue and delayed"},
	} {
		if pair.a == pair.b {
			faults = append(faults, fmt.Errorf("naming: %s are the same: %q", pair.fields, pair.a))
		}
	}
	return errors.Join(faults...)
}

// IsPattern reports whether a topic is a pattern of envelope.MatchEvent: whether one of its words is * or #.
func IsPattern(topic string) bool {
	words := strings.Split(topic, ".")
	return slices.Contains(words, "*") || slices.Contains(words, "#")
}

// template is a name with {variables}. A variable may have a separator in front, as in {.group}, which disappears with
// it if it is empty.
type template string

var variable = regexp.MustCompile(`\{([^{}a-z]?)([a-z]*)\}`)

// expand replaces the variables by the results of lookup. It uses no expression, because each retry needs a name.
func (t template) expand(lookup func(name string) string) string {
	parts := strings.Split(string(t), "{")
	for i, part := range parts[1:] {
		inside, text, _ := strings.Cut(part, "}")
		name := strings.TrimLeftFunc(inside, func(r rune) bool { return r < 'a' || r > 'z' })
		value := lookup(name)
		if value != "" {
			value = strings.TrimSuffix(inside, name) + value
		}
		parts[i+1] = value + text
	}
	return strings.Join(parts, "")
}

// check reports syntax errors in t, and variables that are not allowed.
func (t template) check(allowed []string) error {
	var faults []error
	for _, parts := range variable.FindAllStringSubmatch(string(t), -1) {
		if !slices.Contains(allowed, parts[2]) {
			faults = append(faults, fmt.Errorf("unknown variable {%s}: known here are {%s}", parts[2],
				strings.Join(allowed, "}, {")))
		}
	}
	switch rest := variable.ReplaceAllString(string(t), ""); {
	case strings.ContainsAny(rest, "{}"):
		faults = append(faults, errors.New("write a variable as {name} or {.name}, with one separator in front"))
	case strings.ContainsFunc(string(t), func(r rune) bool { return r < ' ' || r == 0x7f }):
		faults = append(faults, errors.New("has a control character"))
	}
	return errors.Join(faults...)
}

// requires reports whether t has the variable without a separator, so that it must not be empty.
func (t template) requires(name string) bool { return strings.Contains(string(t), "{"+name+"}") }

// presets are the schemes that a Config or URL can name.
var presets = map[string]func() NameScheme{
	"default":         DefaultNames,
	"laravel":         Laravel,
	"delayed-backoff": DelayedBackoff,
	"store-only":      StoreOnly,
	"service-bus":     func() NameScheme { return ServiceBus("") },
	"ttl-cycle":       func() NameScheme { return TTLCycle("") },
}

// Presets lists the valid values of NameScheme.Preset, sorted.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// DefaultNames is the scheme for a new system. A consumer's queue is its topic, followed by the group if there is one;
// retries wait in one place per delay, and each consumer has its own dead letters:
//
//	orders.billing   orders.billing_retry.8000   orders.billing_dlq
func DefaultNames() NameScheme {
	return NameScheme{
		Preset: "default",
		Queue:  "{topic}{.group}",
		Retry:  "{queue}_retry{.delay}",
		Dead:   "{queue}_dlq",
	}
}

// Laravel is the flow orders -> orders_retry -> orders_dlq.
func Laravel() NameScheme {
	return NameScheme{
		Preset: "laravel",
		Queue:  "{topic}",
		Retry:  "{queue}_retry{.delay}",
		Dead:   "{queue}_dlq",
	}
}

// DelayedBackoff has one delayed queue per event type, such as order-reminder-delayed-queue, in which messages wait for
// their first delivery and for their retries, and a dead letter exchange per queue.
func DelayedBackoff() NameScheme {
	return NameScheme{
		Preset:       "delayed-backoff",
		Queue:        "{topic}",
		Retry:        "{topic}-delayed-queue{.delay}",
		Delayed:      "{topic}-delayed-queue{.delay}",
		Dead:         "{queue}-dlq",
		DeadExchange: "{queue}-dlx",
	}
}

// StoreOnly is for systems that keep dead letters in a table. If a dead letter topic is used as well, it is
// {topic}-dlq.
func StoreOnly() NameScheme {
	return NameScheme{
		Preset: "store-only",
		Queue:  "{topic}",
		Retry:  "{topic}{.group}-retry{.delay}",
		Dead:   "{topic}-dlq",
	}
}

// ServiceBus is one topic exchange {project}.bus for all events and one queue {project}.{group} per service, which is
// the group. The delayed exchange has the name of the queue, and dead letters go to the queue's .failed:
//
//	easyweek.bus   easyweek.invoice-service   easyweek.invoice-service.failed
func ServiceBus(project string) NameScheme {
	return NameScheme{
		Preset:        "service-bus",
		Project:       project,
		Exchange:      "{project}.bus",
		Queue:         "{project}.{group}",
		Retry:         "{queue}.retry{.delay}",
		RetryExchange: "{queue}",
		Dead:          "{queue}.failed",
		DeadExchange:  "{queue}.failed",
		Patterns:      true,
	}
}

// TTLCycle is the cycle in which a rejected message waits in the queue's .deadletter and returns when its time to live
// ends; in this system .deadletter is the wait for a retry, and .limbu, as it spells it, is final. exchange is the main
// exchange, such as sme.sgp.workers; empty means the default exchange.
func TTLCycle(exchange string) NameScheme {
	return NameScheme{
		Preset:        "ttl-cycle",
		Exchange:      exchange,
		Queue:         "{topic}",
		Retry:         "{queue}.deadletter{.delay}",
		RetryExchange: "{exchange}.deadletter",
		Dead:          "{queue}.limbu",
	}
}
