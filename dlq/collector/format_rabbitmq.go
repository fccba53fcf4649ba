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

// readRabbitMQ reads the headers that RabbitMQ itself writes when it dead-letters: x-death or, without that,
// x-first-death-* and x-last-death-*.
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
	if h[envelope.KeyConsumer] == death.Queue { // a redriven message: these headers have its first publish
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

// rejected reports whether, according to RabbitMQ, a consumer rejected the message for good.
func rejected(m *message.Message) bool {
	var deaths []xDeath
	if json.Unmarshal([]byte(m.Metadata["x-death"]), &deaths) != nil || len(deaths) == 0 {
		return false
	}
	reason := failure(deaths).Reason
	return reason == "rejected" || reason == "delivery_limit"
}

// failure picks the event that names the consumer of the message: the latest rejection. A message that waited in a
// retry queue expired there, which is no failure; such an event only counts if there is no other.
func failure(deaths []xDeath) xDeath {
	for _, d := range deaths {
		if d.Reason == "rejected" || d.Reason == "delivery_limit" {
			return d
		}
	}
	return deaths[0]
}

func clampCount(n int64) int { return int(max(0, min(n, 1<<31-1))) }
