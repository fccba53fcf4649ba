package drivertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/internal/wait"
)

// Transport is one process's connection to a [Server].
type Transport struct {
	server *Server
	killed atomic.Bool
}

var _ driver.Transport = (*Transport)(nil)

// Connect returns a new connection.
func (s *Server) Connect() *Transport { return &Transport{server: s} }

// Kill ends the connection as if its process had died: every call fails from now on. Close the broker above it at the
// end.
func (t *Transport) Kill() {
	t.killed.Store(true)
	t.server.cut(ErrCut, func(st *stream) bool { return st.t == t })
}

// Traits implements driver.Transport.
func (t *Transport) Traits() driver.Traits { return t.server.cfg.Traits }

// Capabilities implements driver.Transport.
func (t *Transport) Capabilities() brokers.Capabilities { return t.server.cfg.Capabilities }

// Reaches implements driver.Reacher.
func (t *Transport) Reaches(_ context.Context, _ *driver.Outgoing, from driver.Transport) (bool, error) {
	other, ok := from.(*Transport)
	return ok && other.server == t.server, nil
}

// Ping implements driver.Transport.
func (t *Transport) Ping(context.Context) error {
	if ping := t.server.called("Ping").Ping; ping != nil {
		return ping()
	}
	return nil
}

// Close implements driver.Transport.
func (t *Transport) Close(context.Context) error {
	t.server.cut(ErrCut, func(st *stream) bool { return st.t == t })
	return nil
}

// Publish implements driver.Transport.
func (t *Transport) Publish(ctx context.Context, out []driver.Outgoing) []error {
	if t.killed.Load() {
		return slices.Repeat([]error{ErrCut}, len(out))
	}
	hooks := t.server.called("Publish")
	faults := make([]error, len(out))
	for i := range out {
		verdict := Verdict{Copies: 1}
		if hooks.Publish != nil {
			verdict = hooks.Publish(&out[i])
		}
		faults[i] = t.publish(ctx, &out[i], verdict)
	}
	return faults
}

func (t *Transport) publish(ctx context.Context, o *driver.Outgoing, v Verdict) error {
	s := t.server
	s.mu.Lock()
	paused := s.paused
	s.mu.Unlock()
	if paused != nil {
		select {
		case <-paused:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if t.killed.Load() {
		return ErrCut
	}
	for range v.Copies {
		if err := s.store(o); err != nil {
			return err
		}
	}
	switch {
	case v.Stuck:
		<-s.released
	case v.Hang:
		<-ctx.Done()
		return context.Cause(ctx)
	case v.Late > 0:
		if err := wait.For(ctx, v.Late); err != nil {
			return err
		}
	}
	return v.Err
}

// store adds one copy to the queue it belongs to.
func (s *Server) store(o *driver.Outgoing) error {
	if n := o.Size(); s.cfg.Limit > 0 && n > s.cfg.Limit {
		return fmt.Errorf("%d bytes, the server accepts %d: %w", n, s.cfg.Limit, brokers.ErrTooLarge)
	}
	if !o.Due.IsZero() && s.cfg.Capabilities.MaxDelay == 0 {
		return fmt.Errorf("a due time: %w", brokers.ErrUnsupported)
	}
	pause := time.Until(o.Due) // negative without a due time
	if !o.Due.IsZero() && s.cfg.Traits.Early && len(s.cfg.Steps) > 0 {
		pause, _ = s.cfg.Steps.Pick(pause, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	put := func(q *queue) {
		s.position++
		st := &stored{
			uuid: o.Message.UUID, payload: slices.Clone(o.Message.Payload), headers: map[string]string{},
			topic: o.To.Topic, position: s.position, at: time.Now(), due: o.Due,
			first: o.To.Kind == driver.ToTopic,
		}
		if o.Origin != nil && o.Origin.RoutingKey != "" {
			st.topic = o.Origin.RoutingKey
		}
		maps.Insert(st.headers, o.Headers())
		s.putLocked(q, st, pause)
	}
	switch o.To.Kind {
	case driver.ToTopic:
		found := false
		for _, q := range s.queues {
			if q.topic == o.To.Topic && q.consumer != "" {
				put(q)
				found = true
			}
		}
		if !found {
			return fmt.Errorf("topic %s: %w", o.To.Topic, brokers.ErrUnroutable)
		}
	case driver.ToConsumer:
		if o.ExistingOnly && s.queues[key(o.To.Topic, o.To.Consumer)] == nil {
			return fmt.Errorf("consumer %s of %s: %w", o.To.Consumer, o.To.Topic, brokers.ErrUnroutable)
		}
		put(s.queueLocked(o.To.Topic, o.To.Consumer))
	case driver.ToDeadLetters:
		put(s.queueLocked(o.To.Names.Dead, ""))
	}
	return nil
}

// Declare implements driver.Transport.
func (t *Transport) Declare(_ context.Context, q driver.Queue) error {
	if t.killed.Load() {
		return ErrCut
	}
	t.server.called("Declare")
	t.server.mu.Lock()
	defer t.server.mu.Unlock()
	t.server.queueLocked(q.Topic, q.Group)
	return nil
}

// Receive implements driver.Transport.
func (t *Transport) Receive(_ context.Context, q driver.Queue) (driver.Stream, error) {
	s := t.server
	if t.killed.Load() {
		return nil, ErrCut
	}
	if receive := s.called("Receive").Receive; receive != nil {
		if err := receive(q); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.queues[key(q.Topic, q.Group)]
	if have == nil {
		return nil, fmt.Errorf("queue %s of %s: %w", q.Group, q.Topic, brokers.ErrUnroutable)
	}
	st := &stream{t: t, s: s, q: have, window: q.Window, ended: make(chan struct{}), held: map[*stored]bool{}}
	s.sessions[st] = true
	switch {
	case s.cfg.Begins:
		return beginner{st}, nil
	case s.cfg.Renews:
		return renewer{st}, nil
	}
	return st, nil
}

// renewer is a stream that can recreate its messages.
type renewer struct{ *stream }

// Renew implements driver.Renewer.
func (renewer) Renew(d *driver.Delivery) *message.Message { return d.Token.(*stored).render() }

// beginner is a stream that records which deliveries have begun.
type beginner struct{ *stream }

// Begin implements driver.Beginner.
func (b beginner) Begin(_ context.Context, d *driver.Delivery) error {
	if begin := b.s.called("Begin").Begin; begin != nil {
		if err := begin(d.Message); err != nil {
			return err
		}
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if m := d.Token.(*stored); b.err == nil && b.held[m] {
		m.begun = true
		return nil
	}
	return driver.ErrLost
}

type stream struct {
	t     *Transport
	s     *Server
	q     *queue
	ended chan struct{}
	err   error // the reason why it ended
	held  map[*stored]bool

	window int
}

// Next implements driver.Stream.
func (st *stream) Next(ctx context.Context) (driver.Delivery, error) {
	for {
		st.s.mu.Lock()
		changed := st.q.changed
		switch {
		case st.err != nil:
			st.s.mu.Unlock()
			return driver.Delivery{}, st.err
		case len(st.q.ready) > 0 && len(st.held) < st.window && ctx.Err() == nil:
			m := st.q.ready[0]
			st.q.ready = st.q.ready[1:]
			st.q.inFlight = append(st.q.inFlight, m)
			st.held[m] = true
			hook := st.s.hooks.Next
			st.s.mu.Unlock()
			if hook != nil {
				if err := hook(m.render()); err != nil {
					st.s.mu.Lock()
					st.endLocked(err, true)
					st.s.mu.Unlock()
					return driver.Delivery{}, err
				}
			}
			return st.delivery(m), nil
		}
		st.s.mu.Unlock()
		select {
		case <-changed:
		case <-st.ended:
		case <-ctx.Done():
			return driver.Delivery{}, ctx.Err()
		}
	}
}

func (st *stream) delivery(m *stored) driver.Delivery {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	d := driver.Delivery{Message: m.render(), FromTopic: m.first, Token: m, Earlier: m.earlier}
	if st.s.cfg.Capabilities.DeliveryCount {
		d.Suspect = m.count
	}
	if st.s.cfg.Traits.StablePosition {
		d.Origin.Position = strconv.FormatInt(m.position, 10)
	}
	if st.s.cfg.Traits.Ordered {
		d.Order = m.headers["order"]
	}
	d.Origin.Timestamp, d.Origin.Redelivered, d.Origin.DeliveryCount = m.at, m.earlier > 0, m.earlier
	if m.topic != st.q.topic {
		d.Origin.RoutingKey = m.topic
	}
	if m.waited && st.s.cfg.Traits.Early {
		d.Rest = driver.Rest(d.Message, time.Now())
	}
	d.NearLimit = st.s.cfg.GiveUp > 0 && m.count >= st.s.cfg.GiveUp/2
	m.earlier++
	if st.s.hooks.Delivery != nil {
		st.s.hooks.Delivery(&d)
	}
	return d
}

// Settle implements driver.Stream.
func (st *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	hook := st.s.called("Settle").Settle
	faults := make([]error, len(settled))
	for i, one := range settled {
		if hook != nil {
			faults[i] = hook(one)
		}
		if faults[i] == nil {
			faults[i] = st.settle(one)
		}
	}
	return faults
}

func (st *stream) settle(one driver.Settlement) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	m := one.Delivery.Token.(*stored)
	if st.err != nil || !st.held[m] {
		return driver.ErrLost
	}
	delete(st.held, m)
	st.q.takeLocked(m)
	switch one.Answer {
	case driver.Ack:
		st.q.acked = append(st.q.acked, m)
		st.q.changedLocked()
	case driver.Nack:
		if st.s.cfg.CountNacks {
			m.count++
		}
		st.s.putLocked(st.q, m, one.Pause)
	case driver.Release:
		if st.s.cfg.CountNacks {
			m.count++
		} else {
			m.earlier--
		}
		st.q.ready = slices.Insert(st.q.ready, 0, m)
		st.q.changedLocked()
	}
	return nil
}

// Gone implements driver.Watcher.
func (st *stream) Gone() <-chan struct{} { return st.ended }

// Widen implements driver.Widener.
func (st *stream) Widen(_ context.Context, window int) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.window = window
	st.q.changedLocked()
	return nil
}

// endLocked ends the session. Messages in flight return to the front, and are counted if count is set.
func (st *stream) endLocked(err error, count bool) {
	if st.err != nil {
		return
	}
	st.err = err
	close(st.ended)
	delete(st.s.sessions, st)
	var back []*stored
	for _, m := range slices.Clone(st.q.inFlight) {
		if st.held[m] {
			st.q.takeLocked(m)
			if count && (!st.s.cfg.Begins || m.count == 0 || m.begun) {
				m.count++
			}
			m.begun = false
			if st.s.cfg.GiveUp > 0 && m.count >= st.s.cfg.GiveUp {
				gaveUp := st.s.queueLocked(GaveUp, "")
				gaveUp.ready = append(gaveUp.ready, m)
				continue
			}
			back = append(back, m)
		}
	}
	st.q.ready = append(back, st.q.ready...)
	st.q.changedLocked()
}

// Close implements driver.Stream.
func (st *stream) Close(context.Context) error {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.endLocked(ErrCut, st.s.cfg.CountNacks)
	return nil
}
