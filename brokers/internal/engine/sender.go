package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// sender publishes within the timeout, in batches where they pay, and again when the broker was busy, or when an
// oversized message has shed its error texts.
type sender struct {
	b       *Broker
	timeout time.Duration
	late    error // the error after the timeout

	mu      sync.Mutex
	batches map[*driver.Destination]*batcher[*request] // nil unless batches pay
}

func newSender(b *Broker) *sender {
	s := &sender{
		b:       b,
		timeout: b.cfg.PublishTimeout,
		late:    fmt.Errorf("the broker has not confirmed within %s: %w", b.cfg.PublishTimeout, context.DeadlineExceeded),
	}
	if b.traits.PublishBatch > 1 {
		s.batches = map[*driver.Destination]*batcher[*request]{}
	}
	return s
}

// send publishes out and returns nil if all of it is stored, otherwise one error for each.
func (s *sender) send(ctx context.Context, out []driver.Outgoing) []error {
	if ctx.Err() != nil {
		return all(len(out), context.Cause(ctx))
	}
	began := time.Now()
	if s.shared(out) { // it observes the timeout without a context, which would be a fifth of a publication's work
		faults := s.share(ctx, out[0].To, out)
		if faults == nil {
			return nil
		}
		ctx, cancel := context.WithDeadlineCause(ctx, began.Add(s.timeout), s.late)
		defer cancel()
		return s.repair(ctx, out, faults)
	}
	if !s.b.traits.Local {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.timeout, s.late)
		defer cancel()
	}
	faults := s.call(ctx, out)
	if faults == nil {
		return nil
	}
	return s.repair(ctx, out, faults)
}

// repair retries messages that failed for a reason that can be fixed.
func (s *sender) repair(ctx context.Context, out []driver.Outgoing, faults []error) []error {
	busy := func(err error) bool { return errors.Is(err, driver.ErrBusy) }
	for n := 1; slices.ContainsFunc(faults, busy) && wait.For(ctx, settling.After(n)) == nil; n++ {
		s.republish(ctx, out, faults, func(_ *driver.Outgoing, err error) bool { return busy(err) })
	}
	for step := range shedding { // the message is the engine's unless it is a first publication
		s.republish(ctx, out, faults, func(o *driver.Outgoing, err error) bool {
			return errors.Is(err, brokers.ErrTooLarge) && !o.First && shed(o.Message.Metadata, step)
		})
	}
	s.republish(ctx, out, faults, func(o *driver.Outgoing, err error) bool {
		return errors.Is(err, brokers.ErrTooLarge) && s.b.enclose(o)
	})
	for i := range out {
		if o := &out[i]; o.To.Kind == driver.ToTopic && o.Due.IsZero() && s.b.cfg.Naming.Patterns &&
			!o.ExistingOnly && !s.b.cfg.RefuseUnrouted && errors.Is(faults[i], brokers.ErrUnroutable) &&
			!errors.Is(faults[i], driver.ErrMissing) {
			faults[i] = nil // an event that no service has subscribed to
		}
	}
	return nonzero(faults)
}

// shedding lists the dispensable headers of a retry or a dead letter, step by step, for when it is too large for the
// broker: the trace, then the texts, then the class of its error.
var shedding = [...][]string{
	{envelope.KeyErrorTrace},
	{
		envelope.KeyErrorMessage, envelope.KeyPoisonReason, envelope.KeyConsumerError, envelope.KeyDeadLetterRule,
		envelope.KeyTraceLink,
	},
	{
		envelope.KeyErrorClass, envelope.KeyErrorCode, envelope.KeyPoisonTopic, envelope.KeyPoisonHandler,
		envelope.KeyPoisonSubscriber,
	},
}

// shed takes one step on the metadata of a retry or a dead letter, which it changes. It reports whether there was
// anything to shed.
func shed(md message.Metadata, step int) bool {
	found := false
	for _, key := range shedding[step] {
		if _, ok := md[key]; ok {
			delete(md, key)
			found = true
		}
	}
	return found
}

// nonzero returns faults, or nil if all of them are nil.
func nonzero(faults []error) []error {
	if slices.ContainsFunc(faults, func(err error) bool { return err != nil }) {
		return faults
	}
	return nil
}

// republish publishes once more the messages that may be, and updates their faults.
func (s *sender) republish(
	ctx context.Context, out []driver.Outgoing, faults []error, may func(*driver.Outgoing, error) bool,
) {
	var todo []int
	var some []driver.Outgoing
	for i := range out {
		if faults[i] != nil && may(&out[i], faults[i]) {
			todo, some = append(todo, i), append(some, out[i])
		}
	}
	if len(todo) == 0 {
		return
	}
	var answers []error
	if s.shared(some) {
		answers = s.share(ctx, some[0].To, some)
	} else {
		answers = s.call(ctx, some)
	}
	for n, i := range todo {
		faults[i] = nil
		if answers != nil {
			faults[i] = answers[n]
		}
	}
}

// shared reports whether out is published together with other callers' messages.
func (s *sender) shared(out []driver.Outgoing) bool {
	for i := range out {
		if s.batches == nil || out[i].To != out[0].To {
			return false
		}
	}
	return true
}

// call publishes out on the transport.
func (s *sender) call(ctx context.Context, out []driver.Outgoing) []error {
	t := &s.b.traits
	if t.Prompt || t.Local {
		return nonzero(s.b.transport.Publish(ctx, out))
	}
	mine := slices.Clone(out) // a call that is abandoned still reads them when the caller has its messages back
	for i := range mine {
		mine[i].Message = mine[i].Message.Copy()
	}
	faults, late := boundedOf(ctx, t, func(ctx context.Context) ([]error, error) {
		return s.b.transport.Publish(ctx, mine), nil
	}, nil)
	if late != nil {
		return all(len(out), late)
	}
	return nonzero(faults)
}

// request is one caller's messages to publish.
type request struct {
	ctx  context.Context
	out  []driver.Outgoing
	ends time.Time    // the caller's deadline
	done chan []error // capacity 1
}

// share publishes out together with messages that others publish to the same destination in the meantime.
func (s *sender) share(ctx context.Context, to *driver.Destination, out []driver.Outgoing) []error {
	s.mu.Lock()
	batch := s.batches[to]
	if batch == nil {
		if len(s.batches) >= maxDestinations {
			maps.DeleteFunc(s.batches, func(_ *driver.Destination, b *batcher[*request]) bool { return b.idle() })
		}
		batch = &batcher[*request]{
			max: s.b.traits.PublishBatch, flush: s.flush,
			size: func(r *request) int { return len(r.out) },
		}
		s.batches[to] = batch
	}
	r := &request{ctx: ctx, out: out, ends: time.Now().Add(s.timeout), done: make(chan []error, 1)}
	batch.add(r) // under the lock, so that an idle batcher is not dropped now
	s.mu.Unlock()
	// At most half of the timeout is for the wait behind another flush, the rest for this one.
	err := s.late
	select {
	case faults := <-r.done:
		return faults
	case <-time.After(s.timeout / 2):
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if batch.withdraw(r) {
		return all(len(out), err)
	}
	return <-r.done
}

// flush publishes requests in one call, except those whose time ran out while they waited.
func (s *sender) flush(batch []*request) {
	var out []driver.Outgoing
	live := batch[:0]
	for _, r := range batch {
		if r.ctx.Err() != nil {
			r.done <- all(len(r.out), context.Cause(r.ctx))
			continue
		}
		live = append(live, r)
		out = append(out, r.out...)
	}
	if len(live) == 0 {
		return
	}
	ctx, cancel := context.WithDeadlineCause(context.WithoutCancel(live[0].ctx), live[0].ends, s.late)
	defer cancel()
	faults := s.call(ctx, out)
	for _, r := range live {
		n := len(r.out)
		var mine []error
		if faults != nil {
			mine, faults = nonzero(faults[:n:n]), faults[n:]
		}
		if len(live) > 1 && slices.ContainsFunc(mine, func(err error) bool { return errors.Is(err, driver.ErrTogether) }) {
			mine = s.call(ctx, r.out)
		}
		r.done <- mine
	}
}

// all returns the same error n times.
func all(n int, err error) []error {
	return slices.Repeat([]error{err}, n)
}

// maxKept is the longest value of a header of ours that enclose leaves in its place.
const maxKept = 255

// enclose moves the headers of a retry or a dead letter behind its payload, where the broker has room for them; those
// that name the failure and the way back stay. Other producers' headers may fill what a broker has room for, with none
// left for ours: without this, such a message could never leave its consumer. disclose restores it.
//
// With a naming scheme of another system, its own consumers may read the queue and would not understand a retry of this
// form: there the message is dead-lettered instead. enclose reports whether there is anything to send.
func (b *Broker) enclose(o *driver.Outgoing) bool {
	to := o.To.Kind
	if b.caps.MaxHeaderBytes == 0 || to == driver.ToTopic ||
		to == driver.ToConsumer && b.cfg.Naming.Preset != "default" {
		return false
	}
	kept := make(message.Metadata, len(o.Message.Metadata))
	var moved [][2][]byte
	for key, value := range o.Message.Metadata {
		switch {
		case envelope.IsBrokerMade(key): // never published
		case moves(key, len(value)):
			moved = append(moved, [2][]byte{[]byte(key), []byte(value)})
		default:
			kept[key] = value
		}
	}
	if len(moved) == 0 || o.Message.Metadata[envelope.KeyEnclosed] != "" {
		return false
	}
	headers, err := json.Marshal(moved)
	if err != nil {
		return false
	}
	length := len(o.Message.Payload)
	kept[envelope.KeyEnclosed] = strconv.Itoa(length)
	o.Message = o.Message.Copy()
	o.Message.Payload = append(o.Message.Payload[:length:length], headers...)
	o.Message.Metadata = kept
	return true
}

// moves reports whether a header is one that enclose moves. Those that decide what happens to a message stay where they
// are: from behind a payload, a producer could write them over the engine's own, again with every delivery. maxKept is
// also the longest name that AMQP allows.
func moves(key string, length int) bool {
	switch key {
	case envelope.KeyHeaderTypes:
		return true
	case envelope.KeyRetryCount, envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil:
		return false
	}
	return len(key) <= maxKept && !envelope.IsBrokerMade(key) && !slices.Contains(ownState[:], key) &&
		(!envelope.IsOurs(key) || length > maxKept)
}

// disclose restores a message from enclose. A message that only claims to be one keeps its payload.
func disclose(m *message.Message) {
	value, enclosed := m.Metadata[envelope.KeyEnclosed]
	if !enclosed {
		return
	}
	delete(m.Metadata, envelope.KeyEnclosed)
	length, err := strconv.ParseUint(value, 10, 31)
	if err != nil || length > uint64(len(m.Payload)) {
		return
	}
	var headers [][2][]byte
	if json.Unmarshal(m.Payload[length:], &headers) != nil {
		return
	}
	for _, h := range headers {
		if key := string(h[0]); moves(key, len(h[1])) {
			m.Metadata[key] = string(h[1])
		}
	}
	m.Payload = m.Payload[:length:length]
}
