package envelope

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Redrive is which dead letter a message is sent back from.
type Redrive struct {
	// ID is the id of the dead letter's entry; the redriven message's outcome closes that entry.
	ID string
	// Count is how often the message was redriven, this time included.
	Count int
	// Run is the id of the bulk run, or "".
	Run string
}

// PrepareRedrive returns a copy of a dead letter, ready to go back to its consumer: its retry count starts at 0 again,
// its message id, data, metadata, original delay and last error stay, and what made it a dead letter is removed. m is
// not changed.
func PrepareRedrive(m *message.Message, r Redrive) *message.Message {
	out := forward(m, 4)
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

// RedriveCount returns how often the message was redriven; 0 for one that never was or whose count cannot be read.
func RedriveCount(m *message.Message) int {
	n, valid := parseCount(m.Metadata[KeyRedriveCount])
	if !valid {
		return 0
	}
	return n
}

// Redriven is a success that a consumer reports: it has handled a message that came back from the dead letters.
type Redriven struct {
	// EntryID is the dead letter entry that the message says it was redriven from, and Number which of that entry's
	// redrives it was.
	EntryID string
	Number  int
	// MessageID, Topic and Consumer are the message's: those of the entry, or the message has copied the headers of
	// another.
	MessageID, Topic, Consumer string
	// At is when it succeeded.
	At time.Time
}

// RedrivenBy is what a consumer reports that has handled m, which it had from origin.
func RedrivenBy(m *message.Message, origin Origin, at time.Time) Redriven {
	e, _ := FromMessage(m) // with an error it is the foreign view, which has the headers
	return Redriven{
		EntryID: m.Metadata[KeyRedriveID], Number: RedriveCount(m), MessageID: e.MessageID(),
		Topic: origin.Topic, Consumer: origin.Consumer, At: at,
	}
}
