package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// OutcomeSource decides when a collected entry is closed after its redrive.
type OutcomeSource string

const (
	// OutcomeConfirmed closes it when the broker has confirmed the message, because the consumer does not report. A second
	// death reopens it. This is the default.
	OutcomeConfirmed OutcomeSource = "confirmed"
	// OutcomeReported leaves it to the consumer, whose pipeline has the same store as its dead letter sink.
	OutcomeReported OutcomeSource = "reported"
)

// Target is a broker that messages can be sent back to.
type Target struct {
	// Name is the Broker of the sources that are read from it. Required.
	Name string
	// Scheme is the Broker in the envelope.Origin of its deliveries: amqp, kafka. Entries that were not collected, but
	// dead-lettered into the store by their service, are routed by it. Required.
	Scheme string
	// Redriver puts a message in front of one consumer. A brokers.Broker is one. Required.
	Redriver dlq.Redriver
	// Publisher, if set, is for messages of foreign consumers that Redriver cannot reach, as on Kafka, where a foreign
	// group only reads the topic. Leave it nil on RabbitMQ, where a consumer is a queue, no matter who reads it.
	Publisher message.Publisher
	// Outcome closes the collected entries of this broker. Defaults to OutcomeConfirmed.
	Outcome OutcomeSource
}

// RouterConfig configures a [Router].
type RouterConfig struct {
	// Targets are the brokers. At least one is required.
	Targets []Target
	// Store is where entries are closed. Required, unless every target's outcome is reported.
	Store dlq.Store
	// Formats are those of the collector's Config.
	Formats []Format
	// Logger logs. Defaults to slog.Default().
	Logger *slog.Logger
}

// Router sends redriven messages back to the broker, and to the consumer or topic, that they came from. It is the
// dlq.Redriver of a Manager for several brokers. It is safe for concurrent use. It does not close its targets.
type Router struct {
	targets []Target
	store   dlq.Store
	owns    map[string]func(string) bool // by format
	logger  *slog.Logger
}

var _ redrive.BatchRedriver = (*Router)(nil)

// NewRouter makes a Router. The error reports every fault of the configuration.
func NewRouter(cfg RouterConfig) (*Router, error) {
	r := &Router{
		store: cfg.Store, owns: map[string]func(string) bool{}, logger: cmp.Or(cfg.Logger, slog.Default()),
		targets: slices.Clone(cfg.Targets),
	}
	for _, f := range append(Formats(), cfg.Formats...) {
		r.owns[f.Name] = f.Owns
	}
	var errs []error
	if len(r.targets) == 0 {
		errs = append(errs, errors.New("targets: at least one is required"))
	}
	names := map[string]bool{}
	for i := range r.targets {
		t := &r.targets[i]
		switch t.Outcome = cmp.Or(t.Outcome, OutcomeConfirmed); {
		case t.Name == "" || t.Scheme == "" || t.Redriver == nil:
			errs = append(errs, fmt.Errorf("target %d: name, scheme and redriver are required", i))
		case names[t.Name]:
			errs = append(errs, fmt.Errorf("target %d: duplicate name %s", i, t.Name))
		case t.Outcome != OutcomeConfirmed && t.Outcome != OutcomeReported:
			errs = append(errs, fmt.Errorf("target %s: unknown outcome %q: %s or %s", t.Name, t.Outcome, OutcomeConfirmed,
				OutcomeReported))
		case t.Outcome == OutcomeConfirmed && r.store == nil:
			errs = append(errs, fmt.Errorf("target %s: the outcome %s needs a store", t.Name, OutcomeConfirmed))
		}
		names[t.Name] = true
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("collector: router: %w", err)
	}
	return r, nil
}

// Reschedule implements dlq.Redriver. It returns nil when the broker has confirmed the message.
func (r *Router) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	rt, err := r.route(m.Context(), origin) //nolint:contextcheck // of the message
	if err != nil {
		return err
	}
	if err := rt.redriver().Reschedule(ctx, origin, r.strip(m), delay); err != nil { //nolint:contextcheck // of the message
		return err
	}
	r.close(ctx, []*message.Message{m})
	return nil
}

// target finds the broker of an entry: by name if it was collected and goes back there, otherwise by scheme.
func (r *Router) target(name, from string) (*Target, error) {
	var found []*Target
	for i := range r.targets {
		t := &r.targets[i]
		if t.Name == name && from != "" && !scheme.Same(t.Scheme, from) {
			return r.target("", from)
		}
		if name == "" && scheme.Same(t.Scheme, from) || name != "" && t.Name == name {
			found = append(found, t)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case name != "":
		return nil, fmt.Errorf("collector: redrive: the message was collected from broker %q, which is not configured: "+
			"known are %s", name, strings.Join(r.names(), ", "))
	case from == "":
		return nil, errors.New("collector: redrive: the dead letter names no broker, like all of Watermill's own " +
			"subscribers: publish its payload yourself (redrive dlq show ID --raw), and resolve it")
	case len(found) == 0:
		return nil, fmt.Errorf("collector: redrive: the message came from a broker of scheme %q, and none is configured: "+
			"known are %s", from, strings.Join(r.names(), ", "))
	default:
		return nil, fmt.Errorf("collector: redrive: the message came from a broker of scheme %q, and there are %d of them: "+
			"redrive with a configuration that has only the right one", from, len(found))
	}
}

func (r *Router) names() []string {
	var names []string
	for _, t := range r.targets {
		names = append(names, t.Name+" ("+t.Scheme+")")
	}
	return names
}

// strip copies the message without the headers of its dead letter.
func (r *Router) strip(m *message.Message) *message.Message {
	owns := r.owns[driver.CollectedFrom(m.Context()).Format]
	out := m.Copy()
	maps.DeleteFunc(out.Metadata, func(key, _ string) bool {
		return envelope.IsBrokerMade(key) || owns != nil && owns(key)
	})
	return out
}

// MaxCalls is how many messages are sent at once to a target that takes no batches.
const MaxCalls = 64

// route is a message's route back: to which broker, and whether to its consumer or, if that is a foreign one, to its
// topic.
type route struct {
	target *Target
	topic  bool
}

// route finds the route of a message, whose context it gets.
func (r *Router) route(ctx context.Context, origin envelope.Origin) (route, error) {
	collected := driver.CollectedFrom(ctx)
	target, err := r.target(collected.Broker, origin.Broker)
	if err != nil {
		return route{}, err
	}
	if origin.Topic == "" && origin.Consumer == "" {
		return route{}, errors.New("collector: redrive: the origin of the message is unknown: set the origin of the source " +
			"it was collected from")
	}
	foreign := collected.Format != "" && collected.Format != "redrive"
	return route{target, foreign && target.Publisher != nil}, nil
}

func (rt route) redriver() dlq.Redriver {
	if rt.topic {
		return dlq.RedriverFunc(rt.target.publish)
	}
	return rt.target.Redriver
}

// publish is a dlq.RedriverFunc.
func (t *Target) publish(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	if delay > 0 {
		envelope.SetDelay(m, delay)
	}
	m.SetContext(ctx)
	if err := t.Publisher.Publish(origin.Topic, m); err != nil {
		return fmt.Errorf("collector: redrive to topic %s of %s: %w", origin.Topic, t.Name, err)
	}
	return nil
}

// RescheduleAll implements redrive.BatchRedriver: messages with different routes are sent concurrently, and the entries
// that need no outcome are closed together.
func (r *Router) RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error {
	errs := make([]error, len(messages))
	byRoute := map[route][]int{}
	for i, m := range messages {
		rt, err := r.route(m.Context(), origins[i]) //nolint:contextcheck // of the message
		if err != nil {
			errs[i] = err
			continue
		}
		byRoute[rt] = append(byRoute[rt], i)
	}
	var sending sync.WaitGroup
	for rt, indexes := range byRoute {
		sending.Go(func() {
			to, copies := make([]envelope.Origin, len(indexes)), make([]*message.Message, len(indexes))
			for n, i := range indexes {
				to[n], copies[n] = origins[i], r.strip(messages[i]) //nolint:contextcheck // of the message
			}
			for n, err := range redrive.RescheduleAll(ctx, rt.redriver(), to, copies, MaxCalls) {
				errs[indexes[n]] = err
			}
		})
	}
	sending.Wait()
	var confirmed []*message.Message
	for i, m := range messages {
		if errs[i] == nil {
			confirmed = append(confirmed, m)
		}
	}
	r.close(ctx, confirmed)
	return errs
}

// close resolves the entries of confirmed messages whose consumers do not report. After a failure they stay RETRYING
// until the lease ends: the messages were sent, and must not be sent again.
func (r *Router) close(ctx context.Context, confirmed []*message.Message) {
	c := driver.Change{
		Action: driver.ActionSucceed, Actor: "redrive", At: driver.Now(ctx, r.store),
		Note: "confirmed by the broker; its consumer does not report",
	}
	for _, m := range confirmed {
		name := driver.CollectedFrom(m.Context()).Broker //nolint:contextcheck // of the message
		id, err := driver.ParseID(m.Metadata[envelope.KeyRedriveID])
		if name == "" || err != nil { // dead-lettered by its own service, or not the redrive of an entry
			continue
		}
		if target, err := r.target(name, ""); err == nil && target.Outcome == OutcomeConfirmed {
			c.IDs = append(c.IDs, id)
		}
	}
	if len(c.IDs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	results, err := r.store.Change(ctx, c)
	warn := func(err error, ids ...int64) {
		r.logger.WarnContext(ctx, "redriven messages are confirmed, but their entries could not be closed: resolve them "+
			"manually", "entry_ids", ids, "error", err)
	}
	if err != nil {
		warn(err, c.IDs...)
		return
	}
	for _, result := range results {
		if result.Err != nil && !errors.Is(result.Err, dlq.ErrConflict) {
			warn(result.Err, result.ID)
		}
	}
}

// ToTopic implements redrive.TopicRedriver.
func (r *Router) ToTopic(ctx context.Context, origin envelope.Origin) bool {
	rt, err := r.route(ctx, origin)
	return err == nil && rt.topic
}

// Readers implements redrive.ReaderCounter. The groups that read a foreign consumer's topic are unknown.
func (r *Router) Readers(ctx context.Context, origin envelope.Origin) (int, error) {
	rt, err := r.route(ctx, origin)
	if err != nil { // as a redrive's would be
		return 0, fmt.Errorf("%w: %w", redrive.ErrUnreachable, err)
	}
	counter, ok := rt.redriver().(redrive.ReaderCounter)
	if !ok {
		return 0, fmt.Errorf("collector: readers of %s: %w", origin.Topic, errors.ErrUnsupported)
	}
	return counter.Readers(ctx, origin)
}
