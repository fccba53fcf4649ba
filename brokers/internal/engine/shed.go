package engine

import (
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// shedding lists what a retry or a dead letter can do without, one step after the other, when it is too large for the
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

// shed takes a step. It reports whether there was anything to shed. The message is the engine's unless it is a first
// publication.
func shed(o *driver.Outgoing, step int) bool {
	if o.First {
		return false
	}
	found := false
	for _, key := range shedding[step] {
		if _, ok := o.Message.Metadata[key]; ok {
			delete(o.Message.Metadata, key)
			found = true
		}
	}
	return found
}
