package kafka

import (
	"sync"
	"time"
)

// clocks estimates what the clocks of the brokers show. Waiting records are stamped by the broker that takes them
// (message.timestamp.type=LogAppendTime), so that neither the producer's clock nor the consumer's matters: one may be a
// minute behind the other. Between two answers of a broker its clock is followed with this process's monotonic one,
// so that setting the wall clock changes nothing either.
//
// An estimate is never ahead of the broker: the stamp in an answer is older than the answer. A message is therefore
// late by the latency of the best answer, and never early. Stamps of records that are read correct one that fell
// behind.
type clocks struct {
	mu       sync.Mutex
	byBroker map[int32]reading
}

type reading struct {
	shown time.Time // by the broker
	at    time.Time // of this process, with its monotonic part
}

// staleAfter bounds what two clocks that run at different speeds drift apart.
const staleAfter = 10 * time.Minute

// observe takes a stamp that the broker has just given.
func (c *clocks) observe(broker int32, stamp time.Time) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.byBroker[broker]; ok && now.Sub(old.at) < staleAfter && old.shown.Add(now.Sub(old.at)).After(stamp) {
		return // the older answer was faster, and says more
	}
	if c.byBroker == nil {
		c.byBroker = map[int32]reading{}
	}
	c.byBroker[broker] = reading{shown: stamp, at: now}
}

// witness takes a stamp that was just read. It is older than one in an answer, and says something only of a clock that
// is known: what waited for a year would put an unknown one a year back.
func (c *clocks) witness(broker int32, stamp time.Time) {
	if shown, known := c.now(broker); known && stamp.After(shown) {
		c.observe(broker, stamp)
	}
}

// now returns the broker's time, and whether it is known.
func (c *clocks) now(broker int32) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.byBroker[broker]
	elapsed := time.Since(r.at)
	if !ok || elapsed >= staleAfter {
		return time.Time{}, false
	}
	return r.shown.Add(elapsed), true
}
