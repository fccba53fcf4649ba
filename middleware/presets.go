package middleware

import (
	"log/slog"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

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
