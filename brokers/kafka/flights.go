package kafka

import (
	"sync"

	"github.com/redrive-go/redrive/envelope"
)

// flights tells what became of the messages that handlers have in hand, which an ack alone does not: a subscription
// that keeps the order of a key must know whether the message waits for a retry or is dead. The zero value is ready to
// use. It is safe for concurrent use.
type flights struct {
	mu  sync.Mutex
	now map[flight]*fate
}

// flight identifies a message under way by its consumer and the position it keeps over all retries.
type flight struct{ topic, group, position string }

type fate struct{ rescheduled, dead bool }

func flightOf(o *envelope.Origin) flight { return flight{o.Topic, o.Consumer, o.Position} }

// begin watches a message. end must follow.
func (f *flights) begin(o *envelope.Origin) *fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = map[flight]*fate{}
	}
	what := &fate{}
	f.now[flightOf(o)] = what
	return what
}

// end returns what became of the message.
func (f *flights) end(o *envelope.Origin, what *fate) fate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now[flightOf(o)] == what {
		delete(f.now, flightOf(o))
	}
	return *what
}

func (f *flights) rescheduled(o *envelope.Origin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if what := f.now[flightOf(o)]; what != nil {
		what.rescheduled = true
	}
}

func (f *flights) died(o *envelope.Origin) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if what := f.now[flightOf(o)]; what != nil {
		what.dead = true
	}
}
