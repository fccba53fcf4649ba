package engine

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash/maphash"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// A stage is one publication of a message on its way through its retries. A first publication has the name with which
// our publisher stamped it, or one derived from its position; every following publication has a name derived from the
// one before. So when a crash replays a delivery whose retry had already been published, the second retry has the same
// name as the first, and the consumer that has settled one of them acks the other.
const (
	firstStage = "f" // stamped by a publisher
	retryStage = "r" // derived from the previous stage
)

var (
	stagePrefix = firstStage + rand.Text()[:13] + "."
	stageCount  atomic.Uint64
)

// newStage returns a unique name for a first publication.
func newStage() string { return stagePrefix + strconv.FormatUint(stageCount.Add(1), 36) }

// nextStage names the publication that follows delivery h, the same for each copy of h. A second one that follows it,
// for example when a handler forks a message, has another name; repeating the same publication does not.
func nextStage(h *delivery) string {
	sum := sha256.Sum256(strconv.AppendUint([]byte(h.stageName()+"\x00"), uint64(h.rescheduled.Load()), 10))
	return retryStage + base64.RawURLEncoding.EncodeToString(sum[:15])
}

// settledWindow is how many settled stages a consumer remembers, in this process: a copy that arrives after that many
// others is handled again.
const settledWindow = 1 << 14

// consumers holds the memory of each consumer, across its subscriptions.
type consumers struct {
	mu    sync.Mutex
	known map[string]*memory
}

// memoryOf returns the memory of the consumer that reads q. There are as many as the program has subscribed with.
func (c *consumers) memoryOf(q *driver.Queue) *memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := q.Topic + "\x00" + q.Group
	m := c.known[key]
	if m == nil {
		m = &memory{
			seed:    [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
			running: map[digest]*delivery{}, held: map[digest]*delivery{},
		}
		c.known[key] = m
	}
	return m
}

// digest represents a name: 16 bytes, seeded, so that no producer can construct a collision.
type digest [2]uint64

// memory is a consumer's bounded memory of its deliveries.
type memory struct {
	seed [2]maphash.Seed

	mu      sync.Mutex
	settled recent[struct{}]
	nacked  recent[nacked]
	lived   recent[int]          // how many sessions ended with a delivery in flight while this process lived on
	losses  int                  // how many sessions ended while this process lived on
	running map[digest]*delivery // deliveries of ended sessions whose handlers are still running
	held    map[digest]*delivery // deliveries in flight that may have copies, by their stage
	lost    atomic.Bool          // acks have failed: redeliveries are looked up by content
	doubt   atomic.Bool          // publications have failed that may have been stored: every stage is looked up
}

// nacked is the record of a nacked delivery.
type nacked struct {
	times int
	until time.Time // must not be dispatched before
}

func (m *memory) digest(name string) digest {
	return digest{maphash.String(m.seed[0], name), maphash.String(m.seed[1], name)}
}

// settle records that the consumer has settled the stage called name.
func (m *memory) settle(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled.put(m.digest(name), struct{}{})
}

// hasSettled reports whether the consumer has settled the stage called name.
func (m *memory) hasSettled(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.settled.known[m.digest(name)]
	return ok
}

// nack remembers, beyond the end of a session, that a message must not be dispatched for a while. pause gets how often
// the message has been nacked, including this time.
func (m *memory) nack(name string, pause func(times int) time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := m.digest(name)
	n := m.nacked.known[key]
	n.times++
	d := pause(n.times)
	n.until = time.Now().Add(d)
	m.nacked.put(key, n)
	return d
}

// pausing returns how long a nacked message must not be dispatched yet; it is negative for others.
func (m *memory) pausing(name string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.nacked.known[m.digest(name)]
	return time.Until(n.until)
}

// survive records that a session has ended with h in flight while this process lives on. A redelivery does not count
// against it, and waits for the handler that still has it.
func (m *memory) survive(h *delivery) {
	name := h.content()
	if name == "" {
		return
	}
	key := m.digest(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.lived.known[key]
	m.lived.put(key, n+1)
	if h.answered == nil {
		h.answered = make(chan struct{})
	}
	if _, ok := m.running[key]; !ok { // otherwise h waits for that one itself
		m.running[key] = h
	}
}

// survivedWith returns an upper bound of how many of the deliveries counted by the broker did not end in a crash, as
// this process knows. If deliveries that had not begun are counted too, this includes messages that were in transit
// when a session ended, which this process has not seen. A restarted process knows nothing of earlier losses.
func (m *memory) survivedWith(h *delivery) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.session.beginner == nil || m.losses == 0 {
		return m.losses
	}
	n := m.lived.known[m.digest(h.content())] // unnamed content has no record
	return n
}

// earlier returns a channel that is closed when an earlier delivery of the same message in this process has been
// answered, or nil if there is none. In that case, if h is a retry, h itself is held: a retry whose confirm was lost is
// published twice.
func (m *memory) earlier(h *delivery) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.stage != "" && (h.isRetry() || len(m.held) > 0) {
		if e := m.held[m.digest(h.stage)]; e != nil && e != h && e.content() == h.content() {
			return e.answered
		}
	}
	if len(m.running) > 0 {
		if e := m.running[m.digest(h.content())]; e != nil {
			return e.answered
		}
	}
	if h.isRetry() {
		m.holdLocked(h)
	}
	return nil
}

// hold makes copies of h that arrive while h is in flight wait for its answer.
func (m *memory) hold(h *delivery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.holdLocked(h)
}

func (m *memory) holdLocked(h *delivery) {
	key := m.digest(h.stage)
	if h.stage == "" || m.held[key] != nil {
		return
	}
	m.held[key], h.held = h, true
	if h.answered == nil {
		h.answered = make(chan struct{})
	}
}

// pass makes copies of h wait for the answer to next.
func (m *memory) pass(h, next *delivery) {
	if !h.held {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[m.digest(h.stage)] = next
	next.held, next.answered = true, h.answered
	h.held, h.answered = false, nil
}

// lose records that a session has ended.
func (m *memory) lose() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.losses++
}

// answered forgets a delivery that is no longer in flight, and releases those that wait for it.
func (m *memory) answered(h *delivery) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.held {
		delete(m.held, m.digest(h.stage))
		h.held = false
	}
	if h.answered != nil {
		close(h.answered)
		h.answered = nil
	}
	maps.DeleteFunc(m.running, func(_ digest, running *delivery) bool { return running == h })
}

// anyNacked reports whether a lookup can find anything.
func (m *memory) anyNacked() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.nacked.known) > 0
}

// forget drops the record of nacks: the message is done.
func (m *memory) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nacked.known, m.digest(name))
}

// recent is a map of the last settledWindow keys stored in it.
type recent[V any] struct {
	known map[digest]V
	order []digest // a ring
	next  int
}

func (r *recent[V]) put(key digest, v V) {
	if r.known == nil {
		r.known = map[digest]V{}
	}
	_, known := r.known[key]
	switch r.known[key] = v; {
	case known:
	case len(r.order) < settledWindow:
		r.order = append(r.order, key)
	default:
		delete(r.known, r.order[r.next])
		r.order[r.next] = key
		r.next = (r.next + 1) % settledWindow
	}
}

// stageName is the name of the delivery's stage, the same for every delivery of the same publication if that can be
// determined.
func (h *delivery) stageName() string {
	h.naming.Lock() // a handler may publish from several goroutines
	defer h.naming.Unlock()
	switch o := &h.Origin; {
	case h.name != "":
	case h.stage != "":
		h.name = h.stage
	case h.sub.b.traits.StablePosition && o.Position != "":
		h.name = "p" + o.Broker + "\x00" + o.Topic + "\x00" + o.Position
		if o.Incarnation != "" || h.sub.b.shares { // positions start over when a topic is recreated
			h.name += "\x00" + o.Incarnation + "\x00" + strconv.FormatInt(o.Timestamp.UnixMilli(), 10)
		}
	default:
		h.name = newStage() // foreign, and indistinguishable from other messages
	}
	return h.name
}

// content identifies the delivery by its stage, position or id, and by its bytes, because positions start over when a
// topic is recreated, and foreign services pass on our headers with other messages. It is empty for a foreign message
// that has none of the three: nothing distinguishes it from another with the same bytes.
func (h *delivery) content() string { return h.contentOf(h.received) }

func (h *delivery) contentOf(received func() *message.Message) string {
	h.naming.Lock()
	defer h.naming.Unlock()
	name := h.stage
	if name == "" && h.sub.b.traits.StablePosition {
		name = h.Origin.Position
	}
	if h.contents != "" || name == "" && h.uuid == "" {
		return h.contents
	}
	m := received()
	data := m.Payload
	if h.isRetry() { // one that is published twice has two errors in its body, but the same id and data
		if e, err := envelope.FromMessage(m); err == nil {
			data = append(e.Data(), envelope.Identify(m)...)
		}
	}
	sum := sha256.Sum256(data)
	h.contents = "c" + name + "\x00" + h.uuid + "\x00" + string(sum[:])
	return h.contents
}

// received returns the message as it was received: a handler may be changing the other concurrently.
func (h *delivery) received() *message.Message {
	if h.session.renewer == nil {
		return cmp.Or(h.copy, h.Message)
	}
	m := h.session.renewer.Renew(&h.Delivery)
	disclose(m)
	return m
}

// replayed reports whether the consumer has already settled this delivery or a copy of it. No handler has had its
// message yet.
func (h *delivery) replayed() bool {
	m, stamped := h.sub.memory, h.stage != ""
	again := stamped || h.Origin.Redelivered || h.sub.b.traits.StablePosition
	return (h.isRetry() || stamped && m.doubt.Load() || again && m.lost.Load()) &&
		m.hasSettled(h.contentOf(func() *message.Message { return h.Message }))
}

// identify moves the stage out of the delivery's headers, so that the handler and its retries do not see it. A message
// from its topic has at most its publisher's stamp: a retry's stage or a suspect's mark is forged or copied.
func (h *delivery) identify() {
	disclose(h.Message)
	headers := h.Message.Metadata
	stage := headers[envelope.KeyStage]
	if !h.FromTopic || !h.sub.b.traits.StablePosition && strings.HasPrefix(stage, firstStage) {
		h.stage = cmp.Or(stage, h.stage)
	}
	if h.FromTopic {
		delete(headers, envelope.KeySuspect)
	}
	delete(headers, envelope.KeyStage)
	delete(headers, envelope.KeyNotBefore) // it has passed
}
