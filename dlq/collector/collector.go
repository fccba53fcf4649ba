package collector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
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
