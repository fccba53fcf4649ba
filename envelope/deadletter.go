package envelope

import (
	"errors"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Reason is why a message is dead.
type Reason string

// The reasons for which a message is dead-lettered.
const (
	ReasonPermanent Reason = "permanent" // the error was classified as not worth retrying
	ReasonExhausted Reason = "exhausted" // all attempts were used up
	ReasonMalformed Reason = "malformed" // the body claims to be an envelope but cannot be read
	ReasonExpired   Reason = "expired"   // the message exceeded its maximum age
	ReasonPanic     Reason = "panic"     // the handler panicked, in the last of its attempts if panics are retried
	ReasonManual    Reason = "manual"    // a person asked for it
	ReasonCrash     Reason = "crash"     // it was in a handler each time the process died
)

// ErrTooLarge reports that a broker or a dead letter sink never has room for a message of this size: if it prevents a
// retry, the message goes to the first dead letter sink with room.
var ErrTooLarge = errors.New("message is larger than the broker takes")

// DeadLetter is a message that will not be retried automatically, with everything known about the reason. It is handed
// to dead letter sinks, which must not modify it.
type DeadLetter struct {
	// Message is the message to store or publish: its payload is exact, byte for byte, and the failure is recorded in it.
	Message *message.Message
	// Reason is why it is dead.
	Reason Reason
	// Err is the last error as it is transmitted.
	Err Error
	// Class is the Go type of the last error.
	Class string
	// Rule is the rule that classified the error.
	Rule string
	// Handler is the name of the handler that failed.
	Handler string
	// Origin is where the message came from and where a redrive sends it.
	Origin Origin
	// Collected is where a collector found it; zero for a dead letter reported by its consumer.
	Collected Collected
	// Attempts is how many times the handler ran.
	Attempts int
	// FirstFailure is when the first attempt failed.
	FirstFailure time.Time
	// At is when the message became a dead letter.
	At time.Time
	// Cause is the handler's error, for sinks in this process. It may be nil, for example after a restart.
	Cause error
}

// Collected is where a collector found a dead letter, as the collector knows it and not as the message claims.
type Collected struct {
	// Broker is the name of the broker, From the queue or topic there.
	Broker, From string
	// Format is the name of the dead letter's format.
	Format string
}

// Envelope returns the message as an envelope. It never fails: a malformed body becomes the data of a binary envelope.
func (d *DeadLetter) Envelope() Envelope {
	if d.Message == nil {
		return Envelope{}
	}
	e, _ := FromMessage(d.Message) // on an error it still returns the foreign view of the message
	return e
}

// Redrive identifies the dead letter from which a message is sent back.
type Redrive struct {
	// ID is the id of the dead letter's entry; the outcome of the redriven message closes that entry.
	ID string
	// Count is how often the message was redriven, including this time.
	Count int
	// Run is the id of the bulk run, or "".
	Run string
}

// PrepareRedrive returns a copy of a dead letter that is ready to go back to its consumer: its retry count restarts at
// 0, its message id, data, metadata, original delay and last error stay, and the marks of a dead letter are removed. m
// is not changed.
func PrepareRedrive(m *message.Message, r Redrive) *message.Message {
	out := forward(m)
	for _, key := range [...]string{
		KeyRetryCount, KeyInvalidRetryCount, KeyFirstFailure, KeyDeferredSince, KeyDeadLetterReason, KeyDeadLetterRule,
		KeyConsumerError, KeyPoisonReason, KeyPoisonTopic, KeyPoisonHandler, KeyPoisonSubscriber, KeyRedriveRun,
	} {
		delete(out.Metadata, key)
	}
	var s body
	if mode, err := s.read(m); mode == Structured && err == nil {
		out.Payload = s.splice(s.set(s.retry, "retry_count", []byte("0")))
	}
	out.Metadata[KeyRedriveID] = headerText(r.ID, maxName)
	out.Metadata[KeyRedriveCount] = strconv.Itoa(r.Count)
	setOrDelete(out.Metadata, KeyRedriveRun, headerText(r.Run, maxName))
	return out
}

// RedriveCount returns how often the message was redriven; 0 if never, or if the count cannot be read.
func RedriveCount(m *message.Message) int {
	n, valid := parseCount(m.Metadata[KeyRedriveCount])
	if !valid {
		return 0
	}
	return n
}

// Redriven is a success reported by a consumer: it has handled a redriven message.
type Redriven struct {
	// EntryID is the dead letter entry that the message claims to be redriven from, and Number the redrive of that entry.
	EntryID string
	Number  int
	// MessageID, Topic and Consumer are the message's. They match the entry's, unless the message has copied another one's
	// headers.
	MessageID, Topic, Consumer string
	// At is when it succeeded.
	At time.Time
}

// RedrivenBy is the report of a consumer that has handled m, delivered from origin.
func RedrivenBy(m *message.Message, origin Origin, at time.Time) Redriven {
	e, _ := FromMessage(m) // on an error it is the foreign view, which has the headers
	return Redriven{
		EntryID: m.Metadata[KeyRedriveID], Number: RedriveCount(m), MessageID: e.MessageID(),
		Topic: origin.Topic, Consumer: origin.Consumer, At: at,
	}
}
