package chaos_test

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// What the handler of a message does.
const (
	passes   = "passes"   // succeeds at the first attempt
	slow     = "slow"     // succeeds after half a second
	flaky    = "flaky"    // succeeds at the third attempt
	delayed  = "delayed"  // succeeds, after a first-delivery delay
	refused  = "refused"  // is dead-lettered at once
	hopeless = "hopeless" // fails each time, and is dead-lettered when its attempts are exhausted
)

const (
	attempts = 3
	backoff  = 300 * time.Millisecond
	slowness = 500 * time.Millisecond
)

// plan is the payload of a message.
type plan struct {
	ID    string        `json:"id"`
	Kind  string        `json:"kind"`
	Delay time.Duration `json:"delay"` // before the first delivery
}

// dies reports whether the message must be dead-lettered.
func (p plan) dies() bool { return p.Kind == refused || p.Kind == hopeless }

// draw returns the plan of the nth message.
func draw(random *rand.Rand, n int) plan {
	p := plan{ID: strconv.Itoa(n)}
	switch chance := random.IntN(100); {
	case chance < 62:
		p.Kind = passes
	case chance < 82:
		p.Kind = flaky
	case chance < 88:
		p.Kind = refused
	case chance < 92:
		p.Kind = hopeless
	case chance < 95:
		p.Kind = slow
	default:
		p.Kind = delayed
		p.Delay = time.Duration(200+random.IntN(2000)) * time.Millisecond
	}
	return p
}

func (p plan) message() *message.Message {
	payload, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and a number
	}
	m := message.NewMessage("chaos-"+p.ID, payload)
	if p.Delay > 0 {
		envelope.SetDelay(m, p.Delay)
	}
	return m
}
