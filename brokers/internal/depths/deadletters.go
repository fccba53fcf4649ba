// Package depths has what the brokers share that count what waits in them.
package depths

import "github.com/redrive-go/redrive/brokers"

// DeadLetters gives the messages that are ready in a dead letter queue their own kind, and the topic and group of the
// consumer that they died in. Whose it is follows from the names of the queues that were counted.
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
