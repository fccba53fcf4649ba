package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// DefaultMaxAttempts is the limit of a [Config] that names none: the first run and three retries.
const DefaultMaxAttempts = 4

// Config configures a [Pipeline]. Only DeadLetters is required. The presets ([Laravel], [DelayedBackoff], [StoreOnly],
// [ServiceBus], [TTLCycle]) return one that is filled in but for the two ports.
type Config struct {
	// DeadLetters keeps the messages that will not be tried again: a broker, a store, or several by [Sinks]. If it is a
	// [RedriveRecorder] too, it is told of redriven messages that succeed. Required.
	DeadLetters DeadLetterSink
	// Fallback takes a dead letter that DeadLetters could not: a spool file on another disk. Defaults to none.
	Fallback DeadLetterSink
	// Rescheduler takes the messages to be retried or deferred: the broker. When nil they are held in memory, unacked,
	// and run again in this process, which any Watermill subscriber allows, but which blocks a subscriber that hands out
	// one message at a time and forgets the count when the process dies.
	Rescheduler Rescheduler

	// HandlerConfig is what handlers may override.
	HandlerConfig
	// Handlers overrides fields for single handlers, by the name under which they were added to the router.
	Handlers map[string]HandlerConfig

	// DeferDelay is the wait of a deferred message when the error names none. Defaults to 30 s.
	DeferDelay time.Duration
	// MaxDeferAge dead-letters a message as expired that has been deferred for so long without an attempt.
	// Defaults to 24 h.
	MaxDeferAge time.Duration

	// SystemEvents are run instead of the router's handler, by event name ("system.ping.1"). Their messages are acked
	// whatever happens; an error is logged.
	SystemEvents map[string]message.NoPublishHandlerFunc
	// Debug is run instead of the router's handler for messages that say system.is_debug, in a header or in the JSON
	// body. They are acked whatever happens. When nil they are handled like all others.
	Debug message.NoPublishHandlerFunc

	// Breaker stops calling a handler whose dependency is down. Defaults to none.
	Breaker *Breaker
	// Hooks run when a decision is durable.
	Hooks Hooks
	// HookTimeout bounds each hook: after it the message is settled without waiting for the hook. Defaults to 5 s.
	HookTimeout time.Duration

	// PublishTimeout bounds one try to publish a retry or a dead letter. Defaults to 10 s.
	PublishTimeout time.Duration
	// PublishTries is how often a retry or a dead letter is tried to be published, 100 ms, 200 ms ... apart, before the
	// fallback is asked. Defaults to 3.
	PublishTries int
	// NackDelay is the pause before a message is nacked that could not be settled, doubled up to 30 s as long as nothing
	// can be published: a nack is redelivered at once by every broker. It ends early at shutdown. Defaults to 1 s.
	NackDelay time.Duration

	// Logger gets every decision with the message's context. Defaults to slog.Default().
	Logger *slog.Logger
	// LogPayload adds the headers and the first KiB of the payload to the log line of every decision that is not a
	// success. They may hold personal data. Defaults to false.
	LogPayload bool
	// Observer is told what happens, for metrics and traces. Defaults to none, which costs nothing.
	Observer Observer
	// HandlerName returns the name of the handler that a message's context belongs to. Defaults to what Watermill's
	// router has put there.
	HandlerName func(ctx context.Context) string
}

// HandlerConfig is the part of a [Config] that [Config.Handlers] may override. There, a zero field means that the
// handler has no opinion.
type HandlerConfig struct {
	// MaxAttempts is how often a failing message is run, the first time included: 1 never retries. [Tries], [Retries] and
	// [Cycles] say the same in other words. Defaults to 4. At most 1,000,000.
	MaxAttempts int
	// Backoff says how long a retry waits. Defaults to FromOriginalDelay(time.Second).
	Backoff Backoff
	// Timeout is the deadline of the context of one attempt. Negative means none. Defaults to 1 min.
	Timeout time.Duration
	// MaxAge dead-letters a failing message as expired instead of retrying it, when the retry would run later than this
	// after the message's creation, its first-delivery delay not counted. Defaults to no limit; negative means none where a
	// handler overrides one.
	MaxAge time.Duration
	// Rules say what errors mean, before the built-in rules. A handler's own are asked before the general ones.
	Rules []Rule
	// OnPermanent is [OutcomeDeadLetter], [OutcomeSkip] or [OutcomeRetry]. Defaults to OutcomeDeadLetter. A malformed
	// envelope is dead-lettered whatever it says.
	OnPermanent Outcome
	// OnUnknown is the same for errors that no rule knows. Defaults to OutcomeRetry.
	OnUnknown Outcome
	// BuiltinRules switches the built-in rules on or off. Defaults to BuiltinRulesOn.
	BuiltinRules BuiltinRules
}

// BuiltinRules says whether the built-in rules are asked.
type BuiltinRules int

const (
	// BuiltinRulesOn asks them, after the marks and the rules of the configuration.
	BuiltinRulesOn BuiltinRules = iota + 1
	// BuiltinRulesOff leaves every error that has no mark and no rule to OnUnknown.
	BuiltinRulesOff
)

func (c *Config) setDefaults() {
	c.HandlerConfig = c.or(HandlerConfig{
		MaxAttempts:  DefaultMaxAttempts,
		Backoff:      FromOriginalDelay(time.Second),
		Timeout:      time.Minute,
		OnPermanent:  OutcomeDeadLetter,
		OnUnknown:    OutcomeRetry,
		BuiltinRules: BuiltinRulesOn,
	})
	setDefault(&c.DeferDelay, 30*time.Second)
	setDefault(&c.MaxDeferAge, 24*time.Hour)
	setDefault(&c.HookTimeout, 5*time.Second)
	setDefault(&c.PublishTimeout, 10*time.Second)
	setDefault(&c.PublishTries, 3)
	setDefault(&c.NackDelay, time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.HandlerName == nil {
		c.HandlerName = message.HandlerNameFromCtx
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// or fills the fields of h that are zero from general.
func (h HandlerConfig) or(general HandlerConfig) HandlerConfig {
	setDefault(&h.MaxAttempts, general.MaxAttempts)
	setDefault(&h.Timeout, general.Timeout)
	setDefault(&h.MaxAge, general.MaxAge)
	setDefault(&h.OnPermanent, general.OnPermanent)
	setDefault(&h.OnUnknown, general.OnUnknown)
	setDefault(&h.BuiltinRules, general.BuiltinRules)
	if h.Backoff == nil {
		h.Backoff = general.Backoff
	}
	h.Rules = append(append([]Rule(nil), h.Rules...), general.Rules...)
	return h
}

func (c *Config) validate() error {
	var errs []error
	if c.DeadLetters == nil {
		errs = append(errs, errors.New("DeadLetters is required: pass the broker, a dead letter store, or both by Sinks"))
	}
	for _, port := range []struct {
		name  string
		value any
	}{{"DeadLetters", c.DeadLetters}, {"Fallback", c.Fallback}, {"Rescheduler", c.Rescheduler}, {"Observer", c.Observer}} {
		if isTypedNil(port.value) {
			errs = append(errs, fmt.Errorf("%s is a nil %T: was the error of its constructor checked?", port.name, port.value))
		}
	}
	if sinks, ok := c.DeadLetters.(Sinks); ok {
		if len(sinks) == 0 {
			errs = append(errs, errors.New("DeadLetters: Sinks is empty"))
		}
		for i, s := range sinks {
			if s == nil || isTypedNil(s) {
				errs = append(errs, fmt.Errorf("DeadLetters: sink %d is nil", i+1))
			}
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"DeferDelay", c.DeferDelay},
		{"MaxDeferAge", c.MaxDeferAge},
		{"HookTimeout", c.HookTimeout},
		{"PublishTimeout", c.PublishTimeout},
		{"NackDelay", c.NackDelay},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s is %s: it cannot be negative; 0 is the default", d.name, d.value))
		}
	}
	if c.PublishTries < 0 {
		errs = append(errs, fmt.Errorf("PublishTries is %d: it cannot be negative; 0 is the default of 3", c.PublishTries))
	}
	errs = append(errs, c.HandlerConfig.validate(""))
	for name, h := range c.Handlers {
		errs = append(errs, h.or(HandlerConfig{
			MaxAttempts: DefaultMaxAttempts, Backoff: None(), OnPermanent: OutcomeDeadLetter, OnUnknown: OutcomeRetry, BuiltinRules: BuiltinRulesOn,
		}).validate(fmt.Sprintf("Handlers[%q].", name)))
	}
	for name, h := range c.SystemEvents {
		if name == "" || h == nil {
			errs = append(errs, fmt.Errorf("SystemEvents[%q]: both a name and a handler are required", name))
		}
	}
	if c.Breaker != nil {
		errs = append(errs, c.Breaker.validate())
	}
	return errors.Join(errs...)
}

// isTypedNil finds the nil that is not nil: a nil pointer, or a nil function behind an adapter, in an interface.
func isTypedNil(port any) bool {
	v := reflect.ValueOf(port)
	switch v.Kind() {
	case reflect.Pointer, reflect.Func, reflect.Map, reflect.Chan:
		return v.IsNil()
	default:
		return false
	}
}

func (h HandlerConfig) validate(where string) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(where+format, args...)) }
	if h.MaxAttempts < 1 || h.MaxAttempts > envelope.MaxRetryCount {
		fault("MaxAttempts is %d: it counts runs including the first, from 1 (never retry) to %d; 0 is the default of %d",
			h.MaxAttempts, envelope.MaxRetryCount, DefaultMaxAttempts)
	}
	if err := validateBackoff(h.Backoff); err != nil {
		fault("Backoff: %w", err)
	}
	if err := validateRules(where+"Rules", h.Rules); err != nil {
		errs = append(errs, err)
	}
	for _, o := range []struct {
		name  string
		value Outcome
	}{{"OnPermanent", h.OnPermanent}, {"OnUnknown", h.OnUnknown}} {
		switch o.value {
		case OutcomeRetry, OutcomeDeadLetter, OutcomeSkip:
		default:
			fault("%s is %v: use OutcomeRetry, OutcomeDeadLetter or OutcomeSkip", o.name, o.value)
		}
	}
	if h.BuiltinRules != BuiltinRulesOn && h.BuiltinRules != BuiltinRulesOff {
		fault("BuiltinRules is %d: use BuiltinRulesOn or BuiltinRulesOff", int(h.BuiltinRules))
	}
	return errors.Join(errs...)
}

// policy is a HandlerConfig ready for use.
type policy struct {
	HandlerConfig
	classifier *Classifier
}

func newPolicy(h HandlerConfig) *policy {
	return &policy{HandlerConfig: h, classifier: &Classifier{rules: h.Rules, builtin: h.BuiltinRules == BuiltinRulesOn}}
}
