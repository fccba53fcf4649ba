package engine

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// shedding lists the dispensable headers of a retry or a dead letter, step by step, for when it is too large for the
// broker: the trace, then the texts, then the class of its error.
var shedding = [...][]string{
	{envelope.KeyErrorTrace},
	{
		envelope.KeyErrorMessage, envelope.KeyPoisonReason, envelope.KeyConsumerError, envelope.KeyDeadLetterRule,
		envelope.KeyTraceLink,
	},
	{
		envelope.KeyErrorClass, envelope.KeyErrorCode, envelope.KeyPoisonTopic, envelope.KeyPoisonHandler,
		envelope.KeyPoisonSubscriber,
	},
}

// ShedSteps is how many steps there are.
const ShedSteps = len(shedding)

// Shed takes one step on the metadata of a retry or a dead letter, which it changes. It reports whether there was
// anything to shed.
func Shed(md message.Metadata, step int) bool {
	found := false
	for _, key := range shedding[step] {
		if _, ok := md[key]; ok {
			delete(md, key)
			found = true
		}
	}
	return found
}
