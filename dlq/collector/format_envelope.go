package collector

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// readEnvelope reads dead letters of other systems with our layout: the JSON body of the Laravel queues, with its error
// and retry_count, and the headers of the PHP service bus. Neither names the queue that the message died in.
func readEnvelope(m *message.Message, d *Death) bool {
	e, err := envelope.FromMessage(m)
	if err != nil {
		return false
	}
	h := m.Metadata
	if e.Mode() != envelope.Structured && h[envelope.KeyConsumerError] == "" && h[envelope.KeyRetryCount] == "" {
		return false
	}
	if fault := e.Err(); fault != nil {
		d.Err = *fault
	}
	d.Err.Message = cmp.Or(d.Err.Message, h[envelope.KeyConsumerError])
	d.Attempts = e.RetryCount()
	return true
}

func ownedByEnvelope(header string) bool {
	return header == envelope.KeyConsumerError || header == envelope.KeyRetryCount || envelope.IsBrokerMade(header)
}
