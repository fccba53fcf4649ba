// Package drivertest has an in-memory broker that fails on demand: it refuses, hangs, lies, loses answers, delivers
// twice or out of order, cuts connections and counts the cut deliveries. With it the engine, and everything above it,
// is tested in virtual time against the worst behaviour of real brokers.
//
//	server := drivertest.NewServer(drivertest.Config{})
//	broker, err := portable.New(portable.Config{Config: resolved, Transport: server.Connect()})
//	server.Cut() // every connection, now
package drivertest

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// ErrCut ends the sessions and publications of a connection that was cut.
var ErrCut = errors.New("the connection was cut")

// Config makes a server behave like a kind of broker. The zero value supports any delay, requeues nacked messages at
// once and counts no deliveries.
type Config struct {
	// Traits of the transports; Name defaults to "faulty".
	Traits driver.Traits
	// Capabilities of the transports. Scheme defaults to "faulty", MaxDelay to a year; -1 means that it cannot delay.
	Capabilities brokers.Capabilities
	// Steps are the delays that it supports, with Traits.Early. Empty means any.
	Steps driver.Steps
	// Limit is the largest message in bytes, headers included; 0 means none.
	Limit int64
	// CountNacks counts nacks and releases as crashes, as RabbitMQ did before 4.3.
	CountNacks bool
	// GiveUp is the number of counted deliveries after which the server moves a message to [GaveUp] by default; 0 means
	// never.
	GiveUp int
	// Begins makes streams implement driver.Beginner: of a message that was counted before, only deliveries that had begun
	// are counted.
	Begins bool
	// Renews makes streams implement driver.Renewer. It excludes Begins.
	Renews bool
}

// GaveUp is the queue of messages that the server has given up; see [Server.Dead].
const GaveUp = "gave up"

// Verdict is what happens to a publication.
type Verdict struct {
	// Copies is how many copies are stored: normally 1, 0 or 2 for a fault.
	Copies int
	// Err is the result.
	Err error
	// Hang holds the answer back until the context has ended, and Stuck until the server is released.
	Hang, Stuck bool
	// Late is how long the answer is delayed.
	Late time.Duration
}

// Server is the broker. Its methods are safe for concurrent use; set the hooks before the first connection, or with
// With.
type Server struct {
	cfg Config

	mu       sync.Mutex
	hooks    Hooks
	queues   map[string]*queue
	sessions map[*stream]bool
	paused   chan struct{} // closed when publishing may continue; nil if it is not paused
	released chan struct{}
	position int64
	calls    map[string]int
}

// Hooks decide about calls. A nil hook lets all of them succeed. Several are called at a time, without a lock held.
type Hooks struct {
	Publish func(o *driver.Outgoing) Verdict
	Receive func(q driver.Queue) error
	// Next is called for each message before it is dispatched. An error ends the session, as if the client could not
	// decode the message.
	Next func(m *message.Message) error
	// Delivery may change a delivery before the client gets it.
	Delivery func(d *driver.Delivery)
	Settle   func(s driver.Settlement) error
	Begin    func(m *message.Message) error
	Ping     func() error
}

// NewServer returns a server without queues.
func NewServer(cfg Config) *Server {
	cfg.Traits.Name = cmp.Or(cfg.Traits.Name, "faulty")
	cfg.Capabilities.Scheme = cmp.Or(cfg.Capabilities.Scheme, "faulty")
	cfg.Capabilities.MaxDelay = max(cmp.Or(cfg.Capabilities.MaxDelay, 365*24*time.Hour), 0)
	return &Server{
		cfg: cfg, queues: map[string]*queue{}, sessions: map[*stream]bool{}, calls: map[string]int{},
		released: make(chan struct{}),
	}
}

// With changes the hooks.
func (s *Server) With(change func(h *Hooks)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.hooks)
}

// Cut ends every session. Messages in flight return to the front of their queue, and are counted.
func (s *Server) Cut() { s.cut(ErrCut, func(*stream) bool { return true }) }

// Renew ends every session with driver.ErrRenew.
func (s *Server) Renew() { s.cut(driver.ErrRenew, func(*stream) bool { return true }) }

func (s *Server) cut(cause error, which func(*stream) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.sessions {
		if which(st) {
			st.endLocked(cause, true)
		}
	}
}

// PausePublishing makes publishing hang until ResumePublishing, as on a broker that is short of memory or disk.
func (s *Server) PausePublishing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused == nil {
		s.paused = make(chan struct{})
	}
}

// ResumePublishing ends PausePublishing.
func (s *Server) ResumePublishing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused != nil {
		close(s.paused)
		s.paused = nil
	}
}

// Release ends every stuck call.
func (s *Server) Release() { close(s.released) }

// Delete removes a queue with its messages, as an operator does.
func (s *Server) Delete(topic, consumer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[key(topic, consumer)]
	if q == nil {
		return
	}
	delete(s.queues, key(topic, consumer))
	for st := range s.sessions {
		if st.q == q {
			st.endLocked(brokers.ErrUnroutable, false)
		}
	}
}

// Replay redelivers what a queue has delivered, like a partition that is read from an earlier offset.
func (s *Server) Replay(topic, consumer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[key(topic, consumer)]
	for _, st := range q.acked {
		again := *st
		q.ready = append(q.ready, &again)
	}
	q.acked = nil
	q.changedLocked()
}

// Messages returns copies of a queue's messages: ready, waiting and in flight.
func (s *Server) Messages(topic, consumer string) []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[key(topic, consumer)]
	if q == nil {
		return nil
	}
	return rendered(slices.Concat(q.ready, q.inFlight, slices.Collect(maps.Keys(q.waiting))))
}

// Dead returns copies of the dead letters in the queue of that name.
func (s *Server) Dead(name string) []*message.Message { return s.Messages(name, "") }

// Calls returns how often a method of the transports was called: Publish, Receive, Declare, Settle, Begin.
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// Sessions returns how many streams are open.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

func (s *Server) called(method string) Hooks {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
	return s.hooks
}

// stored is a message in a queue.
type stored struct {
	uuid     string
	payload  []byte
	headers  map[string]string
	topic    string
	position int64
	at, due  time.Time
	waited   bool
	first    bool // published to its topic
	begun    bool // recorded by Begin
	count    int  // deliveries that ended without being settled
	earlier  int  // deliveries
}

func (st *stored) render() *message.Message {
	m := message.NewMessage(st.uuid, slices.Clone(st.payload))
	maps.Copy(m.Metadata, st.headers)
	return m
}

func rendered(list []*stored) (found []*message.Message) {
	for _, st := range list {
		found = append(found, st.render())
	}
	return found
}

// queue is a consumer's queue, or one of dead letters.
type queue struct {
	topic, consumer string
	ready           []*stored
	inFlight        []*stored
	acked           []*stored
	waiting         map[*stored]*time.Timer
	changed         chan struct{} // closed on every change
}

func key(topic, consumer string) string { return topic + "\x00" + consumer }

func (s *Server) queueLocked(topic, consumer string) *queue {
	q := s.queues[key(topic, consumer)]
	if q == nil {
		q = &queue{topic: topic, consumer: consumer, waiting: map[*stored]*time.Timer{}, changed: make(chan struct{})}
		s.queues[key(topic, consumer)] = q
	}
	return q
}

func (q *queue) changedLocked() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// putLocked stores st, to be ready when its wait is over.
func (s *Server) putLocked(q *queue, st *stored, wait time.Duration) {
	if wait <= 0 {
		q.ready = append(q.ready, st)
		q.changedLocked()
		return
	}
	st.waited = true
	q.waiting[st] = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(q.waiting, st)
		q.ready = append(q.ready, st)
		q.changedLocked()
	})
}

func (q *queue) takeLocked(st *stored) {
	if i := slices.Index(q.inFlight, st); i >= 0 {
		q.inFlight = slices.Delete(q.inFlight, i, i+1)
	}
}

// Take removes and returns n ready messages of the dead letter queue of that name, or as many as there are.
func (s *Server) Take(name string, n int) []*message.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queueLocked(name, "")
	n = min(n, len(q.ready))
	taken := q.ready[:n]
	q.ready = q.ready[n:]
	return rendered(taken)
}
