package envelope

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Reason explains why a message is dead.
type Reason string

// The reasons for which a message is dead-lettered.
const (
	ReasonPermanent Reason = "permanent" // the error was classified as not worth another try
	ReasonExhausted Reason = "exhausted" // all attempts were used up
	ReasonMalformed Reason = "malformed" // the body claims to be an envelope and cannot be read
	ReasonExpired   Reason = "expired"   // the message grew older than it may
	ReasonPanic     Reason = "panic"     // the handler panicked, in the last of its attempts if panics are retried
	ReasonManual    Reason = "manual"    // somebody asked for it
	ReasonCrash     Reason = "crash"     // it was being handled each time the process died
)

// ErrTooLarge reports that a broker or a dead letter sink has no room for a message of this size, and never will: what
// cannot be retried for it is dead, in the first sink that has room.
var ErrTooLarge = errors.New("message is larger than the broker takes")

// DeadLetter is a message that will not be tried again automatically, with all that is known of why. It is handed to
// dead letter sinks, which must not modify it.
type DeadLetter struct {
	// Message is the message as it is to be stored or published: its payload's bytes are exact and the failure is
	// recorded.
	Message *message.Message
	// Reason explains why it is dead.
	Reason Reason
	// Err is the last error as it travels.
	Err Error
	// Class is the Go type of the last error.
	Class string
	// Rule explains why the error was classified as it was.
	Rule string
	// Handler is the name of the handler that failed.
	Handler string
	// Origin is where the message came from and where a redrive goes.
	Origin Origin
	// Collected is where a collector found it; zero for one that comes from its consumer.
	Collected Collected
	// Attempts is how many times the handler ran.
	Attempts int
	// FirstFailure is when the first attempt failed.
	FirstFailure time.Time
	// At is when the message was given up.
	At time.Time
	// Cause is the handler's error, for sinks in this process. It may be nil, as after a restart.
	Cause error
}

// Collected is where a collector found a dead letter. It is what the collector knows, and nothing that the message
// says.
type Collected struct {
	// Broker is the name of the broker that the dead letter lay on, From the queue or topic there.
	Broker, From string
	// Format is the name of the format that it had.
	Format string
}

// Envelope returns the message as an envelope. It never fails: a malformed body becomes the data of a binary envelope.
func (d *DeadLetter) Envelope() Envelope {
	if d.Message == nil {
		return Envelope{}
	}
	e, _ := FromMessage(d.Message) // with an error it still returns the foreign view of the message
	return e
}
