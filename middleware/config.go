package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// DefaultMaxAttempts is the limit of a [Config] without one: the first run and three retries.
const DefaultMaxAttempts = 4

// Config configures a [Pipeline]. DeadLetters and Rescheduler are required. The presets ([Laravel], [DelayedBackoff],
// [StoreOnly], [ServiceBus], [TTLCycle]) return one that is complete except for those two.
type Config struct {
	// DeadLetters keeps the messages that are not retried any more: a broker, a store, or several by [Sinks]. If it is
	// also a [RedriveRecorder], it is notified of redriven messages that succeed. Required.
	DeadLetters DeadLetterSink
	// Fallback takes dead letters that DeadLetters cannot: a spool file on another disk. Defaults to none.
	Fallback DeadLetterSink
	// Rescheduler takes the messages to be retried or deferred: the broker, or [HoldInMemory]. Required.
	Rescheduler Rescheduler

	// MaxAttempts is how often a failing message is run, including the first time: 1 never retries. [Tries], [Retries] and
	// [Cycles] are other ways of counting it. Defaults to 4. At most 1,000,000.
	MaxAttempts int
	// Backoff returns how long a retry waits. Defaults to FromOriginalDelay(time.Second).
	Backoff Backoff
	// Timeout is the deadline of the context of one attempt. Negative means none. Defaults to 1 min.
	Timeout time.Duration
	// MaxAge dead-letters a failing message as expired instead of retrying it if the retry would run later than this after
	// the message's creation, not counting its first-delivery delay, or after the first failure since its redrive. Zero
	// and negative mean no limit. Defaults to none.
	MaxAge time.Duration
	// Rules classify errors, before the built-in rules.
	Rules []Rule
	// OnPermanent is [OutcomeDeadLetter], [OutcomeSkip] or [OutcomeRetry]. Defaults to OutcomeDeadLetter. A malformed
	// envelope is dead-lettered in any case.
	OnPermanent Outcome
	// OnUnknown is the same for errors that match no rule. Defaults to OutcomeRetry.
	OnUnknown Outcome
	// BuiltinRules switches the built-in rules on or off. Defaults to BuiltinRulesOn.
	BuiltinRules BuiltinRules

	// Handlers overrides the fields from MaxAttempts to BuiltinRules for single handlers, by the name under which they
	// were added to the router. A name without a handler is refused: by [Pipeline.Plugin] before the router starts,
	// otherwise by the first message after which no handler is left that could have it.
	Handlers map[string]HandlerConfig

	// DeferDelay is the wait of a deferred message if the error specifies none. Defaults to 30 s.
	DeferDelay time.Duration
	// MaxDeferAge dead-letters a message as expired if it has been deferred for this long without an attempt. Defaults to
	// 24 h.
	MaxDeferAge time.Duration

	// SystemEvents are run instead of the router's handler, by event name ("system.ping.1"). Their messages are acked
	// whatever happens; an error is logged.
	SystemEvents map[string]message.NoPublishHandlerFunc
	// Debug is run instead of the router's handler for messages marked as system.is_debug, in a header or in the JSON
	// body. They are acked whatever happens. If nil, they are handled like all others.
	Debug message.NoPublishHandlerFunc

	// Breaker stops calling a handler whose dependency is down. Defaults to none.
	Breaker *Breaker
	// Hooks run when a decision is durable.
	Hooks Hooks
	// HookTimeout bounds each hook; after it the message is settled without waiting for the hook. Defaults to 5 s.
	HookTimeout time.Duration

	// PublishTimeout bounds one attempt to publish a retry or a dead letter. Defaults to 10 s.
	PublishTimeout time.Duration
	// PublishTries is how many attempts are made to publish a retry or a dead letter, 100 ms, 200 ms ... apart, before the
	// fallback is used. Defaults to 3.
	PublishTries int
	// NackDelay is the pause before a message that could not be settled is nacked, doubled up to 30 s as long as no
	// publish succeeds: every broker redelivers a nacked message at once. It ends early at shutdown. Defaults to 1 s.
	NackDelay time.Duration

	// Logger gets every decision with the message's context. Defaults to slog.Default(). [envelope.SlogLogger] adapts a
	// watermill.LoggerAdapter.
	Logger *slog.Logger
	// RetryLevel is the level of the line for an attempt that failed and will be retried. Defaults to slog.LevelWarn: a
	// retry is what the pipeline is for.
	RetryLevel slog.Leveler
	// LogPayload adds the headers and the first KiB of the payload to the log line of every decision that is not a
	// success. They may hold personal data. Defaults to false.
	LogPayload bool
	// Observer is notified of what happens, for metrics and traces. Defaults to none, which costs nothing.
	Observer Observer
	// HandlerName returns the name of the handler for a message's context. Defaults to the name set by Watermill's router.
	HandlerName func(ctx context.Context) string
}

// HandlerConfig is the part of [Config.Handlers] for one handler. A zero field inherits that of the [Config]; the
// handler's own Rules are consulted before the general ones, and a negative MaxAge means no limit.
type HandlerConfig struct {
	MaxAttempts  int
	Backoff      Backoff
	Timeout      time.Duration
	MaxAge       time.Duration
	Rules        []Rule
	OnPermanent  Outcome
	OnUnknown    Outcome
	BuiltinRules BuiltinRules
}

// general is the part of c that handlers may override.
func (c *Config) general() HandlerConfig {
	return HandlerConfig{
		MaxAttempts: c.MaxAttempts, Backoff: c.Backoff, Timeout: c.Timeout, MaxAge: c.MaxAge, Rules: c.Rules,
		OnPermanent: c.OnPermanent, OnUnknown: c.OnUnknown, BuiltinRules: c.BuiltinRules,
	}.or(defaultPolicy())
}

func defaultPolicy() HandlerConfig {
	return HandlerConfig{
		MaxAttempts:  DefaultMaxAttempts,
		Backoff:      FromOriginalDelay(time.Second),
		Timeout:      time.Minute,
		OnPermanent:  OutcomeDeadLetter,
		OnUnknown:    OutcomeRetry,
		BuiltinRules: BuiltinRulesOn,
	}
}

// BuiltinRules controls whether the built-in rules are consulted.
type BuiltinRules int

const (
	// BuiltinRulesOn consults them, after the marks and the rules of the configuration.
	BuiltinRulesOn BuiltinRules = iota + 1
	// BuiltinRulesOff leaves every error without a mark or a matching rule to OnUnknown.
	BuiltinRulesOff
)

func (c *Config) setDefaults() {
	c.DeferDelay = cmp.Or(c.DeferDelay, 30*time.Second)
	c.MaxDeferAge = cmp.Or(c.MaxDeferAge, 24*time.Hour)
	c.HookTimeout = cmp.Or(c.HookTimeout, 5*time.Second)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, 10*time.Second)
	c.PublishTries = cmp.Or(c.PublishTries, 3)
	c.NackDelay = cmp.Or(c.NackDelay, time.Second)
	c.RetryLevel = cmp.Or[slog.Leveler](c.RetryLevel, slog.LevelWarn)
	c.Logger = cmp.Or(c.Logger, slog.Default())
}

// or fills the zero fields of h from general.
func (h HandlerConfig) or(general HandlerConfig) HandlerConfig {
	h.MaxAttempts = cmp.Or(h.MaxAttempts, general.MaxAttempts)
	h.Timeout = cmp.Or(h.Timeout, general.Timeout)
	h.MaxAge = cmp.Or(h.MaxAge, general.MaxAge)
	h.OnPermanent = cmp.Or(h.OnPermanent, general.OnPermanent)
	h.OnUnknown = cmp.Or(h.OnUnknown, general.OnUnknown)
	h.BuiltinRules = cmp.Or(h.BuiltinRules, general.BuiltinRules)
	h.Backoff = cmp.Or(h.Backoff, general.Backoff)
	h.Rules = append(append([]Rule(nil), h.Rules...), general.Rules...)
	return h
}

// Validate reports every fault of c at once. [New] calls it.
func (c Config) Validate() error {
	c.setDefaults()
	var errs []error
	if c.DeadLetters == nil {
		errs = append(errs, errors.New("DeadLetters is required: pass the broker, a dead letter store, or both by Sinks"))
	}
	if c.Rescheduler == nil {
		errs = append(errs, errors.New("Rescheduler is required: pass the broker, or middleware.HoldInMemory to keep "+
			"waiting messages unacked in this process"))
	}
	errs = append(errs, validatePort("DeadLetters", c.DeadLetters), validatePort("Fallback", c.Fallback),
		validatePort("Rescheduler", c.Rescheduler), validatePort("Observer", c.Observer))
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
	errs = append(errs, c.general().validate(""), c.canRetry("", c.general()))
	for name, h := range c.Handlers {
		where := fmt.Sprintf("Handlers[%q].", name)
		errs = append(errs, h.or(defaultPolicy()).validate(where), c.canRetry(where, h.or(c.general())))
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

// canRetry asks the Rescheduler whether it supports the retries of h.
func (c *Config) canRetry(where string, h HandlerConfig) error {
	checker, ok := c.Rescheduler.(RetryChecker)
	// otherwise another line of the error reports it
	valid := ok && !isTypedNil(c.Rescheduler) && validateBackoff(h.Backoff) == nil
	if !valid || h.MaxAttempts <= 1 {
		return nil
	}
	var most time.Duration
	for retry := 1; retry < min(h.MaxAttempts, retriesAsked); retry++ {
		most = max(most, backoffDelay(h.Backoff, retry, 0))
	}
	if err := checker.CanReschedule(most); err != nil {
		return fmt.Errorf("%sMaxAttempts is %d, with delays of up to %s: %w", where, h.MaxAttempts, most, err)
	}
	return nil
}

// retriesAsked is how many retries are examined for the longest delay.
const retriesAsked = 100

// validatePort examines lists of sinks with what they contain: an empty one would lose dead letters without an error.
func validatePort(name string, port any) error {
	sinks, several := port.(Sinks)
	switch {
	case several && len(sinks) == 0:
		return fmt.Errorf("%s: Sinks is empty", name)
	case isTypedNil(port):
		return fmt.Errorf("%s is a nil %T: was the error of its constructor checked?", name, port)
	}
	var errs []error
	for i, sink := range sinks {
		where := fmt.Sprintf("%s: sink %d", name, i+1)
		if sink == nil {
			errs = append(errs, errors.New(where+" is nil"))
		}
		errs = append(errs, validatePort(where, sink))
	}
	return errors.Join(errs...)
}

// isTypedNil detects a nil pointer, or a nil function behind an adapter, in an interface that is not nil.
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

// The presets reproduce five systems that this package replaces: how often they run a message, how long they wait, and
// how they treat errors. Each is complete except for the ports: set Rescheduler and DeadLetters, change what you like,
// and call [New]. The broker packages have naming schemes of the same names.

// Laravel runs a message maxRetries times in total, which is how that system counts, without a delay in between. Errors
// are not distinguished: only the handler's own marks and rules that you add make one permanent.
func Laravel(maxRetries int) Config {
	return Config{
		MaxAttempts:  Tries(maxRetries),
		Backoff:      None(),
		BuiltinRules: BuiltinRulesOff,
	}
}

// DelayedBackoff runs a message once and up to maxRetries times more, after its original delay, twice that, four times
// that ... fallback is the base for messages that were delivered without a delay. Permanent errors are dead-lettered at
// once. Every decision is logged with headers and content, which may hold personal data.
func DelayedBackoff(maxRetries int, fallback time.Duration) Config {
	return Config{
		MaxAttempts: Retries(maxRetries), Backoff: FromOriginalDelay(fallback),
		LogPayload: true, RetryLevel: slog.LevelError,
	}
}

// StoreOnly retries only technical errors (timeouts, connections), three attempts in total. Messages that are invalid
// or fail with an unknown error go to the dead letters at the first failure, to be inspected and redriven from there.
func StoreOnly() Config {
	return Config{
		MaxAttempts: Tries(3),
		Backoff:     FromOriginalDelay(time.Second),
		OnUnknown:   OutcomeDeadLetter,
	}
}

// ServiceBus runs a message tries times in total and waits for the given delays in between, repeating the last one;
// without delays it retries at once. Permanent errors (validation, not found, duplicates) are logged as a warning and
// acked. The bus's ping, [SystemPing], is acked: to do more, add a handler of that name to SystemEvents.
func ServiceBus(tries int, delays ...time.Duration) Config {
	backoff := None()
	if len(delays) > 0 {
		backoff = Steps(delays...)
	}
	return Config{
		MaxAttempts: Tries(tries), Backoff: backoff, OnPermanent: OutcomeSkip, RetryLevel: slog.LevelError,
		SystemEvents: map[string]message.NoPublishHandlerFunc{SystemPing: func(*message.Message) error { return nil }},
	}
}

// SystemPing is the system event with which the service bus checks whether its services are alive.
const SystemPing = "system.ping.1"

// TTLCycle runs a message once and up to cycles times more, each after ttl in a waiting queue; the original system
// specifies 5 s in one place and 10 min in another. Errors are not distinguished, as in [Laravel].
func TTLCycle(cycles int, ttl time.Duration) Config {
	return Config{
		MaxAttempts:  Cycles(cycles),
		Backoff:      Constant(ttl),
		BuiltinRules: BuiltinRulesOff,
	}
}

// Sets of limits and delays for single handlers, for [Config.Handlers].

// FastRetries is for work that a person waits for: at once, after 1 s, after 5 s.
func FastRetries() HandlerConfig { return retries(4, 0, time.Second, 5*time.Second) }

// SteadyRetries is for ordinary background work: after 5 s, 30 s and 5 min.
func SteadyRetries() HandlerConfig { return retries(4, 5*time.Second, 30*time.Second, 5*time.Minute) }

// PatientRetries is for services that stay down for a while: after 1 min, 5 min and 1 h.
func PatientRetries() HandlerConfig { return retries(4, time.Minute, 5*time.Minute, time.Hour) }

// TransientRetries is for short glitches: five attempts, after 1, 1, 2 and 5 s.
func TransientRetries() HandlerConfig {
	return retries(5, time.Second, time.Second, 2*time.Second, 5*time.Second, 10*time.Second)
}

// ExternalAPIRetries is for remote services: three attempts, after 5 s and 30 s.
func ExternalAPIRetries() HandlerConfig {
	return retries(3, 5*time.Second, 30*time.Second, time.Minute)
}

// NoRetries is for work whose errors do not change on retry, such as validation: one attempt.
func NoRetries() HandlerConfig { return HandlerConfig{MaxAttempts: Tries(1)} }

func retries(attempts int, delays ...time.Duration) HandlerConfig {
	return HandlerConfig{MaxAttempts: attempts, Backoff: Steps(delays...)}
}

// The systems that this package replaces count their limit in three ways. [Config.MaxAttempts] counts runs including
// the first; these functions translate.

// Tries means n runs in total, including the first: Tries(3) runs a failing message three times. Tries(0) runs it once,
// because no message may be dead-lettered unseen.
func Tries(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// Retries means the first run and n more: Retries(3) runs a failing message four times.
func Retries(n int) int {
	if n < 0 {
		return n
	}
	return min(n, math.MaxInt-1) + 1
}

// Cycles means the first run and n trips through a waiting queue: Cycles(3) runs a failing message four times.
func Cycles(n int) int { return Retries(n) }
