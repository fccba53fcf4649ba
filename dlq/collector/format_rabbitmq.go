package collector

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// xDeath is one event in x-death, which RabbitMQ orders latest first. The RabbitMQ driver passes it as JSON.
type xDeath struct {
	Queue       string    `json:"queue"`
	Reason      string    `json:"reason"` // rejected, expired, maxlen, delivery_limit
	Count       int64     `json:"count"`
	Exchange    string    `json:"exchange"`
	RoutingKeys []string  `json:"routing-keys"`
	Time        time.Time `json:"time"`
}

// readRabbitMQ reads what RabbitMQ itself writes when it dead-letters: x-death, or if only these exist, x-first-death-*
// and x-last-death-*.
func readRabbitMQ(m *message.Message, d *Death) bool {
	h := m.Metadata
	var deaths []xDeath
	if json.Unmarshal([]byte(h["x-death"]), &deaths) != nil || len(deaths) == 0 {
		queue := cmp.Or(h["x-last-death-queue"], h["x-first-death-queue"])
		if queue == "" {
			return false
		}
		deaths = []xDeath{{
			Queue:    queue,
			Reason:   cmp.Or(h["x-last-death-reason"], h["x-first-death-reason"]),
			Exchange: cmp.Or(h["x-last-death-exchange"], h["x-first-death-exchange"]),
			Count:    1,
		}}
	}
	death := failure(deaths)
	d.Topic, d.Consumer = death.Queue, death.Queue
	d.Exchange = death.Exchange
	if len(death.RoutingKeys) > 0 {
		d.RoutingKey = death.RoutingKeys[0]
	}
	if h[envelope.KeyConsumer] == death.Queue { // it was redriven, and this is where it was first published
		d.Exchange, d.RoutingKey = h[envelope.KeyExchange], h[envelope.KeyRoutingKey]
	}
	d.At = deaths[0].Time
	d.Handler = death.Queue
	d.Class = death.Reason
	switch death.Reason {
	case "rejected":
		d.Err.Message = "rejected by a consumer of queue " + death.Queue
		d.Attempts = clampCount(death.Count)
	case "delivery_limit":
		d.Err.Message = fmt.Sprintf("the delivery limit of queue %s was reached", death.Queue)
		d.Attempts = clampCount(death.Count)
	case "expired":
		d.Reason = envelope.ReasonExpired
		d.Err.Message = "the time to live ended in queue " + death.Queue
	case "maxlen":
		d.Err.Message = fmt.Sprintf("queue %s was full", death.Queue)
	default:
		d.Err.Message = "dead-lettered by RabbitMQ from queue " + death.Queue
	}
	return true
}

// rejected reports whether, according to RabbitMQ, a consumer has given the message up.
func rejected(m *message.Message) bool {
	var deaths []xDeath
	if json.Unmarshal([]byte(m.Metadata["x-death"]), &deaths) != nil || len(deaths) == 0 {
		return false
	}
	reason := failure(deaths).Reason
	return reason == "rejected" || reason == "delivery_limit"
}

// failure picks the event that shows whose message it is: the latest in which a consumer gave up. A message that waited
// in a retry queue has expired there on its way, which is not a failure; it only counts if there is nothing else.
func failure(deaths []xDeath) xDeath {
	for _, d := range deaths {
		if d.Reason == "rejected" || d.Reason == "delivery_limit" {
			return d
		}
	}
	return deaths[0]
}

func clampCount(n int64) int { return int(max(0, min(n, 1<<31-1))) }
