package docstest

import (
	"context"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/envelope"
)

// This is the broker of docs/writing-a-driver.md: slots of a shelf, one for each consumer.

// Shelf is the server: it outlives the connections to it.
type Shelf struct {
	mu      sync.Mutex
	slots   map[slotName]*slot
	early   map[string][]*parcel // published before a consumer had a slot
	numbers int64
}

type slotName struct{ topic, group string }

type slot struct {
	parcels []*parcel
	added   chan struct{}
}

type parcel struct {
	number int64
	id     string
	body   []byte
	header map[string]string
	due    time.Time
	count  int // deliveries so far
}

// transport is one connection.
type transport struct {
	shelf *Shelf
}

func (t *transport) Publish(_ context.Context, out []driver.Outgoing) []error {
	s := t.shelf
	s.mu.Lock()
	defer s.mu.Unlock()
	faults := make([]error, len(out))
	for i := range out {
		o := &out[i]
		if o.ExistingOnly && !s.has(o.To) { // a redrive makes nothing
			faults[i] = brokers.ErrUnroutable
			continue
		}
		switch o.To.Kind {
		case driver.ToConsumer: // a retry: for this one consumer
			s.slot(o.To.Topic, o.To.Consumer).put(s.parcel(o))
		case driver.ToDeadLetters:
			s.spread(o.To.Names.Dead, o)
		case driver.ToTopic:
			s.spread(o.To.Topic, o)
		}
	}
	return faults
}

func (s *Shelf) parcel(o *driver.Outgoing) *parcel {
	s.numbers++
	p := &parcel{number: s.numbers, id: o.Message.UUID, due: o.Due, header: map[string]string{}}
	p.body = append(p.body, o.Message.Payload...)
	maps.Insert(p.header, o.Headers())
	return p
}

// has reports whether any consumer reads the destination.
func (s *Shelf) has(to *driver.Destination) bool {
	for name := range s.slots {
		if name.topic == to.Topic && (to.Kind == driver.ToTopic || name.group == to.Consumer) {
			return true
		}
	}
	return false
}

// spread gives each group that reads topic a separate parcel.
func (s *Shelf) spread(topic string, o *driver.Outgoing) {
	read := false
	for name, to := range s.slots {
		if name.topic == topic {
			to.put(s.parcel(o))
			read = true
		}
	}
	if !read {
		s.early[topic] = append(s.early[topic], s.parcel(o))
	}
}

func (s *Shelf) slot(topic, group string) *slot {
	name := slotName{topic, group}
	if s.slots[name] == nil {
		s.slots[name] = &slot{parcels: s.early[topic], added: make(chan struct{}, 1)}
		delete(s.early, topic)
	}
	return s.slots[name]
}

func (s *slot) put(p *parcel) {
	s.parcels = append(s.parcels, p)
	s.wake()
}

func (s *slot) wake() {
	select {
	case s.added <- struct{}{}:
	default:
	}
}

func (t *transport) Declare(_ context.Context, q driver.Queue) error {
	t.shelf.mu.Lock()
	defer t.shelf.mu.Unlock()
	t.shelf.slot(q.Topic, q.Group)
	return nil
}

func (t *transport) Receive(_ context.Context, q driver.Queue) (driver.Stream, error) {
	t.shelf.mu.Lock()
	defer t.shelf.mu.Unlock()
	return &stream{shelf: t.shelf, slot: t.shelf.slot(q.Topic, q.Group)}, nil
}

func (t *transport) Capabilities() brokers.Capabilities {
	return brokers.Capabilities{
		Scheme: "shelf", Ordered: true, Groups: true,
		MaxDelay: envelope.MaxDelay, DelayTolerance: 10 * time.Millisecond,
	}
}

func (t *transport) Traits() driver.Traits {
	return driver.Traits{Name: "shelf", Local: true, NackPause: true, StablePosition: true}
}

func (t *transport) Ping(context.Context) error  { return nil }
func (t *transport) Close(context.Context) error { return nil }

// stream is a consumer's slot, while it is read.
type stream struct {
	shelf *Shelf
	slot  *slot
}

func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	for {
		p, wait := s.take()
		if p != nil {
			return delivery(p), nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.slot.added:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return driver.Delivery{}, ctx.Err()
		}
		timer.Stop()
	}
}

// Settle is called with how deliveries ended. An acked one is off the shelf already.
func (s *stream) Settle(_ context.Context, settled []driver.Settlement) []error {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	for i := range settled {
		p := settled[i].Delivery.Token.(*parcel)
		switch settled[i].Answer {
		case driver.Ack:
		case driver.Nack:
			p.count++
			p.due = time.Now().Add(settled[i].Pause)
			s.slot.put(p)
		case driver.Release: // to its place in front, and not counted
			s.slot.parcels = append([]*parcel{p}, s.slot.parcels...)
			s.slot.wake()
		}
	}
	return nil
}

func (s *stream) Close(context.Context) error { return nil }

// take removes the first parcel that is due, or returns how long to wait for one.
func (s *stream) take() (found *parcel, wait time.Duration) {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	wait = time.Hour
	for i, p := range s.slot.parcels {
		rest := time.Until(p.due)
		if rest > 0 {
			wait = min(wait, rest)
			continue
		}
		s.slot.parcels = append(s.slot.parcels[:i:i], s.slot.parcels[i+1:]...)
		if len(s.slot.parcels) > 0 { // for another stream of the slot
			s.slot.wake()
		}
		return p, 0
	}
	return nil, wait
}

func delivery(p *parcel) driver.Delivery {
	m := message.NewMessage(p.id, append([]byte{}, p.body...))
	maps.Copy(m.Metadata, p.header)
	d := driver.Delivery{Message: m, Token: p, Earlier: p.count}
	d.Origin.Position = strconv.FormatInt(p.number, 10)
	d.Origin.Redelivered, d.Origin.DeliveryCount = p.count > 0, p.count
	return d
}

// Driver opens shelf:// URLs.
type Driver struct{ shelf *Shelf }

func (d Driver) Params() []brokers.Param {
	return []brokers.Param{driver.NackPause()}
}

func (d Driver) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	return portable.New(portable.Config{Config: cfg, Params: d.Params(), Transport: &transport{d.shelf}})
}

func TestShelf(t *testing.T) {
	brokertest.Run(t, brokertest.Harness{
		Virtual: true,
		Volume:  200,
		Backend: func(t *testing.T) brokertest.Backend {
			t.Helper()
			mux := &brokers.Mux{}
			mux.Register("shelf", Driver{&Shelf{slots: map[slotName]*slot{}, early: map[string][]*parcel{}}})
			return brokertest.Backend{Open: func(cfg brokers.Config) (brokers.Broker, error) {
				cfg.URL = "shelf://"
				return mux.OpenConfig(t.Context(), cfg)
			}}
		},
	})
}

var (
	_ driver.Transport = (*transport)(nil)
	_ driver.Stream    = (*stream)(nil)
)
