// Package depths is shared by the brokers that count their waiting messages.
package depths

import "github.com/redrive-go/redrive/brokers"

// DeadLetters sets the kind of messages that are ready in a dead letter queue, and the topic and group of the consumer
// that they died in, which follow from the names of the counted queues.
func DeadLetters(found []brokers.Depth, naming brokers.NameScheme) []brokers.Depth {
	owners := map[string]brokers.Depth{}
	for _, d := range found {
		dead := naming.For(d.Topic, d.Group).Dead
		if _, known := owners[dead]; !known && dead != d.Topic {
			owners[dead] = d
		}
	}
	for i, d := range found {
		if of, dead := owners[d.Topic]; dead && d.Kind == brokers.DepthReady {
			found[i].Topic, found[i].Group, found[i].Kind = of.Topic, of.Group, brokers.DepthDeadLetter
		}
	}
	return found
}
