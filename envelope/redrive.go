package envelope

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Redrive says which dead letter a message is sent back from.
type Redrive struct {
	// ID is the id of the dead letter's entry; the redriven message's outcome closes that entry.
	ID string
	// Count is how often the message was redriven, this time included.
	Count int
	// Run is the id of the bulk run, or "".
	Run string
}

// PrepareRedrive returns a copy of a dead letter, ready to go back to its consumer: its retry count starts at 0 again, its
// message id, data, metadata, original delay and last error stay, and what made it a dead letter is removed. m is not changed.
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
