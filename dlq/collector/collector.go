package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
	"github.com/redrive-go/redrive/internal/wait"
)

// Sink keeps dead letters: nil means that the dead letter is durable and its message may be acked. A *dlq.Letters is
// one. Give a collector Letters without a spool, because what it reads is safe in the broker until it is stored.
type Sink interface {
	DeadLetter(ctx context.Context, d *envelope.DeadLetter) error
}

// Source is one queue or topic to read dead letters from.
type Source struct {
	// Broker is the broker's name in a [Router]. Required.
	Broker string
	// Topic is what to subscribe to: orders_dlq, payments.DLT. Required.
	Topic string
	// Subscriber reads it. Required. Run does not close it. The number of messages that it delivers before the first is
	// acked is the number stored at once: 50 is a good number.
	Subscriber message.Subscriber
	// Origin is where the messages came from. Fields that are set take precedence over the message. Leave all empty for a
	// queue with the dead letters of several services whose headers name their origin.
	Origin envelope.Origin
}

// Config configures a [Collector].
type Config struct {
	// Sink takes the dead letters. Required.
	Sink Sink
	// Sources are read concurrently; one that fails does not stop the others. At least one is required.
	Sources []Source
	// Formats are tried before the built-in ones, see [Formats].
	Formats []Format
	// RetryMin and RetryMax bound the pauses between attempts to store, or to subscribe. Default to 200 ms and 30 s.
	RetryMin, RetryMax time.Duration
	// Hold is how long a message that the sink rejects is held before it is returned to the broker. Defaults to 1 min.
	Hold time.Duration
	// StoreTimeout bounds one attempt to store. Defaults to 30 s.
	StoreTimeout time.Duration
	// Logger logs. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	c.RetryMin = cmp.Or(c.RetryMin, 200*time.Millisecond)
	c.RetryMax = cmp.Or(c.RetryMax, 30*time.Second)
	c.Hold = cmp.Or(c.Hold, time.Minute)
	c.StoreTimeout = cmp.Or(c.StoreTimeout, 30*time.Second)
	c.Logger = cmp.Or(c.Logger, slog.Default())
}

func (c *Config) validate() error {
	var errs []error
	if c.Sink == nil {
		errs = append(errs, errors.New("sink: required"))
	}
	if len(c.Sources) == 0 {
		errs = append(errs, errors.New("sources: at least one is required"))
	}
	seen := map[[2]string]bool{}
	for i, s := range c.Sources {
		switch id := [2]string{s.Broker, s.Topic}; {
		case s.Broker == "" || s.Topic == "" || s.Subscriber == nil:
			errs = append(errs, fmt.Errorf("source %d: broker, topic and subscriber are required", i))
		case seen[id]:
			errs = append(errs, fmt.Errorf("source %d: duplicate %s of %s", i, s.Topic, s.Broker))
		default:
			seen[id] = true
		}
	}
	for i, f := range c.Formats {
		if f.Name == "" || f.Read == nil {
			errs = append(errs, fmt.Errorf("format %d: name and read are required", i))
		}
	}
	if c.RetryMin < 0 || c.RetryMax < c.RetryMin || c.Hold < 0 || c.StoreTimeout < 0 {
		errs = append(errs, fmt.Errorf("retry %s to %s, hold %s, store timeout %s: must not be negative, nor the second "+
			"below the first", c.RetryMin, c.RetryMax, c.Hold, c.StoreTimeout))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("collector: %w", err)
	}
	return nil
}

// Collector reads sources into a sink. Make one with New.
type Collector struct {
	cfg     Config
	formats []Format
	readers []*reader
}

// New makes a Collector. The error reports every fault of the configuration.
func New(cfg Config) (*Collector, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Collector{cfg: cfg, formats: append(slices.Clone(cfg.Formats), Formats()...)}
	for _, s := range cfg.Sources {
		c.readers = append(c.readers, &reader{
			collector: c, source: s, log: cfg.Logger.With("broker", s.Broker, "source", s.Topic),
		})
	}
	return c, nil
}

// Run reads every source until ctx ends, then drains: every message that was delivered is stored or returned before it
// returns nil. Subscriptions that fail are retried without limit; Stats shows them. Call it once.
func (c *Collector) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, r := range c.readers {
		running.Go(func() { r.run(ctx) })
	}
	running.Wait()
	return nil
}

// Stats returns the statistics of every source, in the order of the configuration. It is safe for concurrent use.
func (c *Collector) Stats() []SourceStats {
	all := make([]SourceStats, 0, len(c.readers))
	for _, r := range c.readers {
		all = append(all, r.stats())
	}
	return all
}

// SourceStats is the state of a source.
type SourceStats struct {
	Broker, Topic string
	// Subscribed means that messages can arrive now.
	Subscribed bool
	// Collected counts messages stored and acked, GivenBack those nacked because the sink did not accept them in time.
	Collected, GivenBack int64
	// Held counts messages that wait for the sink now.
	Held int64
	// LastCollected is when the last one was stored; zero if none was.
	LastCollected time.Time
	// Err is the current error of the subscription or the sink; empty without one.
	Err string
}

// reader collects from one source.
type reader struct {
	collector *Collector
	source    Source
	log       *slog.Logger

	mu    sync.Mutex // guards state
	state SourceStats
}

func (r *reader) stats() SourceStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.Broker, s.Topic = r.source.Broker, r.source.Topic
	return s
}

func (r *reader) note(change func(*SourceStats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

// run subscribes, repeatedly if necessary, and returns when ctx has ended and all messages are settled.
func (r *reader) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := r.consume(ctx)
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			err = errors.New("the subscription ended unexpectedly")
		}
		r.note(func(s *SourceStats) { s.Err = err.Error() })
		if time.Since(began) > r.collector.cfg.RetryMax { // it worked for a while
			failures = 0
		}
		failures++
		pause := r.collector.retries().After(failures)
		r.log.WarnContext(ctx, "dead letters cannot be read; the subscription is retried", "pause", pause, "error", err)
		_ = wait.For(ctx, pause)
	}
	r.note(func(s *SourceStats) { s.Subscribed = false })
}

// consume is one subscription, from its first message until the last is settled.
func (r *reader) consume(ctx context.Context) error {
	messages, err := r.source.Subscriber.Subscribe(ctx, r.source.Topic)
	if err != nil {
		return err
	}
	r.note(func(s *SourceStats) { s.Subscribed, s.Err = true, "" })
	r.log.InfoContext(ctx, "collecting dead letters")
	var handling sync.WaitGroup
	defer handling.Wait()
	defer r.note(func(s *SourceStats) { s.Subscribed = false })
	for m := range messages {
		// The subscriber bounds how many there are at once.
		handling.Go(func() { r.collect(ctx, m) })
	}
	return nil
}

// collect settles one message.
func (r *reader) collect(ctx context.Context, m *message.Message) {
	letter := r.collector.read(&r.source, m) //nolint:contextcheck // pure; the message has a separate context
	attrs := []any{"message_id", letter.Message.UUID, "from_topic", letter.Origin.Topic}
	// The message's own context ends when the subscription is lost. Finishing is still useful: the store recognizes the
	// message when it is delivered a second time.
	work := context.WithoutCancel(m.Context())
	deadline := time.Now().Add(r.collector.cfg.Hold)
	for n := 1; ; n++ {
		err := r.store(work, letter) //nolint:contextcheck // see work
		if err == nil {
			m.Ack()
			r.note(func(s *SourceStats) { s.Collected++; s.LastCollected, s.Err = time.Now(), "" })
			r.log.DebugContext(ctx, "dead letter collected", attrs...)
			return
		}
		r.note(func(s *SourceStats) { s.Err = err.Error() })
		pause := r.collector.retries().After(n)
		if ctx.Err() != nil || time.Now().Add(pause).After(deadline) {
			r.note(func(s *SourceStats) { s.GivenBack++ })
			r.log.ErrorContext(ctx, "dead letter returned to the broker: it could not be stored", append(attrs, "error", err)...)
			m.Nack()
			return
		}
		r.log.WarnContext(ctx, "dead letter held: it cannot be stored", append(attrs, "pause", pause, "error", err)...)
		r.note(func(s *SourceStats) { s.Held++ })
		_ = wait.For(ctx, pause)
		r.note(func(s *SourceStats) { s.Held-- })
	}
}

func (r *reader) store(ctx context.Context, letter *envelope.DeadLetter) error {
	ctx, cancel := context.WithTimeout(ctx, r.collector.cfg.StoreTimeout)
	defer cancel()
	return r.collector.cfg.Sink.DeadLetter(ctx, letter)
}

// retries has the pauses between attempts to subscribe, and to store.
func (c *Collector) retries() wait.Backoff {
	return wait.Backoff{First: c.cfg.RetryMin, Longest: c.cfg.RetryMax}
}

// read makes a dead letter of a message in a dead letter queue. It never fails.
func (c *Collector) read(s *Source, m *message.Message) *envelope.DeadLetter {
	var death Death
	format := plain
	for _, f := range c.formats {
		if c.readAs(f, m, &death) {
			format = f.Name
			break
		}
		death = Death{}
	}
	found, ok := envelope.OriginFrom(m.Context())
	if !ok {
		found = &envelope.Origin{}
	}
	// A message that has only waited in RabbitMQ returned from there, and its consumer published it later with all its
	// headers. The name of the dead letter queue has to name that consumer: nothing else does.
	if queue := withoutSuffix(s.Topic); format == "rabbitmq" && death.Reason == envelope.ReasonExpired &&
		queue != s.Topic && queue != death.Consumer && isWaitQueue(death.Consumer) {
		death = Death{At: death.At}
	}
	now := time.Now()
	death.complete(s, found, now)

	origin := death.origin(s, found)
	return &envelope.DeadLetter{
		Message: withID(m, origin, found), Collected: envelope.Collected{Broker: s.Broker, From: s.Topic, Format: format},
		Reason: death.Reason, Err: death.Err, Class: death.Class, Rule: death.Rule, Handler: death.Handler,
		Origin: origin, Attempts: death.Attempts, FirstFailure: death.FirstFailure, At: death.At,
	}
}

// readAs reports whether the message is of the format. A format may panic, because programs add theirs: its message
// would be delivered again, and end the process each time.
func (c *Collector) readAs(f Format, m *message.Message, d *Death) (ok bool) {
	defer func() {
		if value := recover(); value != nil {
			c.cfg.Logger.ErrorContext(m.Context(), "a format panicked, and is ignored for this message", "format", f.Name,
				"message_id", m.UUID, "panic", value)
			ok = false
		}
	}()
	return f.Read(m, d)
}

// complete fills in what the message does not say, from the queue in which it was found.
func (d *Death) complete(s *Source, found *envelope.Origin, now time.Time) {
	queue := withoutSuffix(s.Topic)
	if d.Topic == "" && d.Consumer == "" {
		d.Topic = queue
		if found.Exchange != "" || scheme.Same(found.Broker, "amqp") {
			d.Consumer = queue // a queue is a consumer there
		}
	}
	d.Topic = cmp.Or(d.Topic, d.Consumer)
	if d.Consumer == "" {
		// orders.billing_dlq has the dead letters of topic orders, group billing.
		if group, ok := strings.CutPrefix(queue, d.Topic+"."); ok {
			d.Consumer = group
		}
	}
	d.Reason = cmp.Or(d.Reason, envelope.ReasonExhausted)
	d.Err.Message = cmp.Or(d.Err.Message, d.Class, "dead-lettered to "+s.Topic+" without a reason")
	// Kafka's time is that of the record in the dead letter topic; elsewhere it is that of the first publish.
	if d.At.IsZero() && found.Broker == "kafka" {
		d.At = found.Timestamp
	}
	if d.At.IsZero() || d.At.After(now) {
		d.At = now
	}
	if d.FirstFailure.IsZero() || d.FirstFailure.After(d.At) {
		d.FirstFailure = d.At
	}
}

// origin is where a redrive goes: the source's configuration, or else the message's.
func (d *Death) origin(s *Source, found *envelope.Origin) envelope.Origin {
	o := envelope.Origin{
		Broker:     cmp.Or(s.Origin.Broker, found.Broker),
		Topic:      cmp.Or(s.Origin.Topic, d.Topic),
		Consumer:   cmp.Or(s.Origin.Consumer, d.Consumer),
		Exchange:   cmp.Or(s.Origin.Exchange, d.Exchange),
		RoutingKey: cmp.Or(s.Origin.RoutingKey, d.RoutingKey),
		Key:        found.Key,
		Partition:  d.Partition, Offset: d.Offset, Timestamp: d.Published, Incarnation: d.incarnation,
	}
	if d.Partition != nil && d.Offset != nil {
		o.Position = strconv.FormatInt(int64(*d.Partition), 10) + "/" + strconv.FormatInt(*d.Offset, 10)
		if d.positionTopic != "" {
			o.Position = d.positionTopic + ":" + o.Position
		}
	}
	return o
}

// withID copies the message with a permanent id.
//
// The driver gives a record without an id one that it derives from its position in the dead letter topic. One from the
// position in the original topic is better: it is the same when the service dead-letters the message twice, and it is
// the one that consumers of that topic see.
func withID(m *message.Message, origin envelope.Origin, found *envelope.Origin) *message.Message {
	id := m.UUID
	if made := envelope.StableID(found); made != "" && (id == made || id == "") {
		id = made
		if first := envelope.StableID(&origin); first != "" {
			id = first
		}
	}
	out := message.NewMessage(id, m.Payload)
	maps.Copy(out.Metadata, m.Metadata)
	if m.Metadata[envelope.KeyConsumer] == "" && m.Metadata[envelope.KeyRoutingKey] == found.RoutingKey {
		// The RabbitMQ driver's headers say how the message came into the dead letter queue, which is not part of it.
		delete(out.Metadata, envelope.KeyRoutingKey)
		delete(out.Metadata, envelope.KeyExchange)
	}
	if id == "" {
		if out.UUID = envelope.Identify(out); out.UUID == "" {
			out.UUID = envelope.NewID()
		}
	}
	return out
}

// suffixes are common endings of the names of dead letter queues, ours and others'.
var suffixes = []string{
	"_dlq", ".dlq", "-dlq", "_dlt", ".dlt", "-dlt", ".failed", "_failed", "-failed", ".limbo", ".limbu", "_error",
	".error", "-error",
	"_skipped", ".deadletter", ".dead-letter", ".dead", "_poison", ".poison", "-poison", "_poisoned",
}

// withoutSuffix guesses a queue's name from that of its dead letter queue. A name without a known suffix is unchanged.
func withoutSuffix(name string) string {
	lower := strings.ToLower(name)
	for _, suffix := range suffixes {
		if len(name) > len(suffix) && strings.HasSuffix(lower, suffix) {
			return name[:len(name)-len(suffix)]
		}
	}
	return name
}

// isWaitQueue reports whether messages wait for a retry or a first delivery in a queue of this name. One that is sent
// there without a time to live would never leave, and hold up those behind it.
func isWaitQueue(name string) bool {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return strings.ContainsRune("._-", r) })
	return slices.ContainsFunc(words, func(word string) bool {
		return slices.Contains([]string{"retry", "retries", "delay", "delayed", "wait", "waiting"}, word)
	})
}
