package middleware

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Outcome is what happens to a delivery.
type Outcome int

const (
	// OutcomeSuccess acks the message and publishes what the handler has produced.
	OutcomeSuccess Outcome = iota + 1
	// OutcomeRetry reschedules the message with one more failure counted.
	OutcomeRetry
	// OutcomeDeadLetter keeps the message with the reason, and tries it no more automatically.
	OutcomeDeadLetter
	// OutcomeSkip logs, counts and acks.
	OutcomeSkip
	// OutcomeDefer reschedules the message without counting.
	OutcomeDefer
	// OutcomeGiveBack nacks the message without counting, because this consumer is shutting down or has lost it.
	OutcomeGiveBack
	// OutcomeNotSettled nacks the message after a pause, because neither retry nor dead letter could be published.
	OutcomeNotSettled
)

// String returns the outcome as metrics and logs name it.
func (o Outcome) String() string {
	switch o {
	case OutcomeSuccess:
		return "success"
	case OutcomeRetry:
		return "retry"
	case OutcomeDeadLetter:
		return "dead_letter"
	case OutcomeSkip:
		return "skip"
	case OutcomeDefer:
		return "defer"
	case OutcomeGiveBack:
		return "give_back"
	case OutcomeNotSettled:
		return "not_settled"
	default:
		return fmt.Sprintf("Outcome(%d)", int(o))
	}
}

// Decision is what a pipeline does about a failed attempt, and why.
type Decision struct {
	Outcome Outcome
	// Verdict is what classification said.
	Verdict Verdict
	// Reason is why the message is dead; empty unless Outcome is [OutcomeDeadLetter].
	Reason envelope.Reason
	// Attempt is the run that failed.
	Attempt Attempt
	// Delay is the wait of [OutcomeRetry] and [OutcomeDefer].
	Delay time.Duration
	// Base is what the backoff has made Delay of: the original delay, or its own base. 0 where it has none, and where
	// the error asked for the delay.
	Base time.Duration
	// Err is the handler's error, wrapped in an [ExhaustedError] or matching [ErrExpired] where a limit decided.
	Err error
}
