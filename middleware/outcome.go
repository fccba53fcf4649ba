package middleware

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Outcome is what happens to a delivery.
type Outcome int

const (
	// OutcomeSuccess acks the message and publishes the messages that the handler produced.
	OutcomeSuccess Outcome = iota + 1
	// OutcomeRetry reschedules the message and counts one more failure.
	OutcomeRetry
	// OutcomeDeadLetter stores the message with the reason, and does not retry it automatically.
	OutcomeDeadLetter
	// OutcomeSkip logs, counts and acks the message.
	OutcomeSkip
	// OutcomeDefer reschedules the message without counting a failure.
	OutcomeDefer
	// OutcomeGiveBack nacks the message without counting a failure, because this consumer is shutting down or has lost it.
	OutcomeGiveBack
	// OutcomeNotSettled nacks the message after a pause, because neither retry nor dead letter could be published.
	OutcomeNotSettled
)

// String returns the outcome's name in metrics and logs.
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
	// Verdict is the result of classification.
	Verdict Verdict
	// Reason is why the message is dead; empty unless Outcome is [OutcomeDeadLetter].
	Reason envelope.Reason
	// Attempt is the run that failed.
	Attempt Attempt
	// Delay is the wait of [OutcomeRetry] and [OutcomeDefer].
	Delay time.Duration
	// Base is the delay from which the backoff derived Delay: the original delay, or its own base. It is 0 if there is
	// none, and if the error specified the delay.
	Base time.Duration
	// Err is the handler's error, wrapped in an [ExhaustedError] or matching [ErrExpired] if a limit decided.
	Err error
}
