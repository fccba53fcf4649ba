package envelope

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

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
