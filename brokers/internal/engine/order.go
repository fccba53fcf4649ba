package engine

import (
	"sync"

	"github.com/redrive-go/redrive/brokers/driver"
)

// order runs deliveries of one Order one after the other.
type order struct {
	mu   sync.Mutex
	busy map[string][]*delivery // the running one, followed by those that wait
}

// mayRun reports whether h may run now. Otherwise it is sent to ready in its turn.
func (s *subscription) mayRun(h *delivery) bool {
	return h.Order == "" || h.ordered || s.order.join(h)
}

func (o *order) join(h *delivery) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.ordered = true
	waiting, busy := o.busy[h.Order]
	if busy {
		o.busy[h.Order] = append(waiting, h)
		return false
	}
	o.busy[h.Order] = nil
	return true
}

// leave lets the next one run after an ack. Deliveries behind one that was not acked are released with it, because they
// must not overtake it.
func (o *order) leave(h *delivery, outcome driver.Answer) {
	if !h.ordered {
		return
	}
	o.mu.Lock()
	waiting := o.busy[h.Order]
	if outcome != driver.Ack || len(waiting) == 0 {
		delete(o.busy, h.Order)
	} else {
		o.busy[h.Order] = waiting[1:]
	}
	o.mu.Unlock()
	switch {
	case len(waiting) == 0:
	case outcome == driver.Ack:
		h.sub.ready <- waiting[0]
	default:
		for _, next := range waiting {
			next.ordered = false
			next.settle(driver.Release, 0)
		}
	}
}
