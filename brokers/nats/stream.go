package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

const (
	// requestExpires is how long the server keeps one request for messages.
	requestExpires = 30 * time.Second
	// heartbeat is how often the server reports that it still has a request. A new leader does not have the old one's
	// requests.
	heartbeat = 2 * time.Second
	// ackTimeout is how long the server has to confirm an ack. A server that was killed does not know its most recent
	// deliveries and never answers their acks. It redelivers them.
	ackTimeout = 3 * time.Second
	// followEvery is how often the group's acks are recorded.
	followEvery = 10 * time.Second
)

// stream reads a durable consumer: it requests as many messages as the window has room for. The client's own Consume
// and Messages fetch more, and do not extend the ack deadline of what they have buffered while a handler runs.
type stream struct {
	t           *transport
	retries     string                   // the subject of the group's retries
	config      jetstream.ConsumerConfig // that the consumer must have
	name        string                   // of the JetStream stream
	incarnation string
	consumer    jetstream.Consumer
	created     time.Time     // when the consumer was created
	ackWait     time.Duration // which another process may change
	extending   *time.Ticker
	sub         *nats.Subscription
	need        chan struct{} // there may be room in the window
	doubt       chan struct{} // the consumer may be gone
	wake        chan struct{} // there is a message for Next
	stop        chan struct{}
	working     sync.WaitGroup

	mu        sync.Mutex
	window    int
	requested int         // messages requested from the server but not received yet
	ready     []*nats.Msg // for Next
	inFlight  map[*nats.Msg]struct{}
	heard     time.Time // when the server last sent something
	silent    int       // consecutive checks at which the server was silent
	err       error
	closing   bool
}

var (
	_ driver.Stream  = (*stream)(nil)
	_ driver.Renewer = (*stream)(nil)
	_ driver.Widener = (*stream)(nil)
)

// Receive implements driver.Transport.
func (t *transport) Receive(ctx context.Context, q driver.Queue) (driver.Stream, error) {
	js, consumer, err := t.consumer(ctx, q.Topic, q.Group)
	if err != nil {
		return nil, err
	}
	info, found := js.CachedInfo(), consumer.CachedInfo()
	// The stream is looked up again, because it may have been recreated before the consumer was found.
	if now, err := ask(ctx, func(ctx context.Context) (*jetstream.StreamInfo, error) { return js.Info(ctx) }); err != nil {
		return nil, missing(err)
	} else if !startsIn(now, consumer) {
		return nil, fmt.Errorf("the consumer was created for an earlier stream: %w", brokers.ErrUnroutable)
	}
	s := &stream{
		t: t, retries: placeOf(q.Topic).retries(q.Group), name: info.Config.Name, incarnation: incarnation(info),
		consumer: consumer, created: found.Created, config: t.configOf(&q, found.Name), window: q.Window,
		extending: time.NewTicker(time.Hour), heard: time.Now(), inFlight: map[*nats.Msg]struct{}{},
		need: make(chan struct{}, 1), doubt: make(chan struct{}, 1), wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	s.record(found)
	if s.sub, err = t.conn.Subscribe(nats.NewInbox(), s.receive); err != nil {
		return nil, err
	}
	if err := s.sub.SetPendingLimits(-1, -1); err != nil { // the window limits them
		return nil, err
	}
	t.mu.Lock()
	t.streams[s] = struct{}{}
	t.mu.Unlock()
	wait.Signal(s.need)
	s.working.Go(s.work)
	s.working.Go(s.follow)
	return s, nil
}

func missing(err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("%w: %w", brokers.ErrUnroutable, err)
	}
	return err
}

// receive handles what the server sends: messages, and the status of our requests.
func (s *stream) receive(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard, s.silent = time.Now(), 0
	if strings.HasPrefix(m.Reply, "$JS.ACK.") {
		s.requested = max(0, s.requested-1)
		s.inFlight[m] = struct{}{}
		if s.closing {
			return
		}
		s.ready = append(s.ready, m)
		wait.Signal(s.wake)
		return
	}
	switch status, text := m.Header.Get(statusHeader), m.Header.Get("Description"); {
	case status == "100": // a heartbeat
	case status == "408": // a request has expired without all its messages
		unsent, _ := strconv.Atoi(m.Header.Get("Nats-Pending-Messages"))
		s.requested = max(0, s.requested-unsent)
		wait.Signal(s.need)
	case status == "409" && strings.EqualFold(text, "Consumer Deleted"):
		s.fail(fmt.Errorf("the consumer has been deleted: %w", brokers.ErrUnroutable))
	case status == "409" && (strings.EqualFold(text, "Leadership Change") || strings.EqualFold(text, "Server Shutdown")):
		s.requested = 0 // checkSilence requests again, when there may be a leader
	case status == "503": // no server leads the consumer, or it is gone
		s.fail(fmt.Errorf("the server does not take requests for messages: %s", text))
	default: // an operator has edited the consumer: the engine declares it, which changes it back
		s.fail(fmt.Errorf("%w: the server refuses requests for messages: %s %s", brokers.ErrUnroutable, status, text))
	}
}

// fail ends the stream. The caller holds mu.
func (s *stream) fail(err error) {
	if s.err == nil && !s.closing {
		s.err = err
	}
	wait.Signal(s.wake)
}

// work requests messages, and extends the ack deadline of those in flight.
func (s *stream) work() {
	defer s.extending.Stop()
	silence := time.NewTicker(heartbeat)
	defer silence.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.need:
			s.request()
		case <-s.extending.C:
			s.extend()
		case <-silence.C:
			s.checkSilence()
		}
	}
}

func (s *stream) request() {
	s.mu.Lock()
	n := s.window - len(s.inFlight) - s.requested
	if s.closing || s.err != nil || n <= 0 || s.requested > 0 && n < s.window/4 {
		s.mu.Unlock()
		return
	}
	s.requested += n
	s.mu.Unlock()
	request := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, n, requestExpires, heartbeat)
	err := s.t.conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+s.name+"."+s.config.Durable, s.sub.Subject, request)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fail(err)
	}
}

func (s *stream) extend() {
	s.mu.Lock()
	inFlight := slices.Collect(maps.Keys(s.inFlight))
	s.mu.Unlock()
	for _, m := range inFlight {
		_ = s.t.conn.Publish(m.Reply, []byte("+WPI")) // at worst it is redelivered
	}
}

// checkSilence requests again after the server was silent, and ends the stream if that does not help.
func (s *stream) checkSilence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.t.conn.IsConnected() {
		s.heard = time.Now() // the client reconnects, and then we request again
		return
	}
	if time.Since(s.heard) < 2*heartbeat+heartbeat/2 || s.requested == 0 && s.window <= len(s.inFlight) {
		return
	}
	if s.silent++; s.silent > 2 {
		s.fail(errors.New("the server has stopped answering requests for messages"))
		return
	}
	s.requested, s.heard = 0, time.Now()
	wait.Signal(s.need)
}

// follow records the group's acks, so that a deleted consumer can be recreated after them, undoes what an operator has
// changed in the consumer, and ends the stream when it no longer exists. The server only reports that in answer to a
// request for messages, and with a full window there is none.
func (s *stream) follow() {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		case <-s.doubt:
		}
		ctx, cancel := context.WithTimeout(context.Background(), followEvery/2)
		info, err := s.consumer.Info(ctx)
		same := err == nil && info.Created.Equal(s.created)
		if same {
			want := s.config
			want.AckWait = info.Config.AckWait // another process may be configured with another
			if err = s.t.adjust(ctx, s.name, info.Config, &want); !errors.Is(err, brokers.ErrUnroutable) {
				s.record(info) // otherwise these are the acks of another topic
			}
		}
		cancel()
		switch {
		case same && errors.Is(err, brokers.ErrUnsupported):
			err = fmt.Errorf("%w: %w", brokers.ErrUnroutable, err) // the engine declares it, which fails until it is changed
		case err == nil && !same:
			err = fmt.Errorf("the consumer has been recreated: %w", brokers.ErrUnroutable)
		}
		if err = missing(err); errors.Is(err, brokers.ErrUnroutable) { // otherwise try again next time
			s.mu.Lock()
			s.fail(err)
			s.mu.Unlock()
		}
	}
}

// record records what the consumer's state says.
func (s *stream) record(info *jetstream.ConsumerInfo) {
	s.t.mu.Lock()
	s.t.floors[floorKey(s.name, s.retries)] = floor{incarnation: s.incarnation, seq: info.AckFloor.Stream}
	s.t.mu.Unlock()
	if have := info.Config.AckWait; have != s.ackWait {
		s.ackWait = have
		s.extending.Reset(max(have/3, time.Millisecond))
		s.extend() // it may be overdue
	}
}

// Next implements driver.Stream.
func (s *stream) Next(ctx context.Context) (driver.Delivery, error) {
	for {
		s.mu.Lock()
		err := s.err
		var m *nats.Msg
		if err == nil && len(s.ready) > 0 {
			m, s.ready = s.ready[0], s.ready[1:]
		}
		s.mu.Unlock()
		switch {
		case err != nil:
			return driver.Delivery{}, err
		case m != nil:
			return s.delivery(m), nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return driver.Delivery{}, ctx.Err()
		}
	}
}

func (s *stream) delivery(m *nats.Msg) driver.Delivery {
	d := driver.Delivery{Message: parse(m), Token: m, FromTopic: m.Subject != s.retries}
	meta, err := m.Metadata()
	if err != nil {
		return d
	}
	before := int(meta.NumDelivered) - 1 //nolint:gosec // a count of deliveries
	d.Suspect, d.Earlier = before, before
	d.Origin.Timestamp = meta.Timestamp
	d.Origin.Position = s.incarnation + "/" + strconv.FormatUint(meta.Sequence.Stream, 10)
	d.Origin.Redelivered, d.Origin.DeliveryCount = before > 0, before
	return d
}

// Renew implements driver.Renewer.
func (s *stream) Renew(d *driver.Delivery) *message.Message { return parse(d.Token.(*nats.Msg)) }

// Widen implements driver.Widener.
func (s *stream) Widen(_ context.Context, window int) error {
	s.mu.Lock()
	s.window = window
	s.mu.Unlock()
	wait.Signal(s.need)
	return nil
}

// Settle implements driver.Stream.
func (s *stream) Settle(ctx context.Context, settled []driver.Settlement) []error {
	errs := make([]error, len(settled))
	for i := range settled {
		m := settled[i].Delivery.Token.(*nats.Msg)
		errs[i] = s.settle(ctx, m, settled[i].Answer)
		if errs[i] != nil && !errors.Is(errs[i], driver.ErrLost) { // it is retried
			continue
		}
		s.mu.Lock()
		delete(s.inFlight, m)
		s.mu.Unlock()
	}
	wait.Signal(s.need)
	return errs
}

func (s *stream) settle(ctx context.Context, m *nats.Msg, outcome driver.Answer) error {
	if outcome != driver.Ack {
		return s.release(ctx, m)
	}
	ctx, cancel := context.WithTimeout(ctx, min(ackTimeout, s.config.AckWait/2)) // before it is redelivered
	defer cancel()
	_, err := s.t.conn.RequestWithContext(ctx, m.Reply, []byte("+ACK"))
	switch {
	case err == nil:
		s.remove(m)
		return nil
	case errors.Is(err, nats.ErrNoResponders):
		wait.Signal(s.doubt)
	case errors.Is(err, context.DeadlineExceeded) && s.t.conn.IsConnected():
		return fmt.Errorf("%w: the server does not answer its ack", driver.ErrLost)
	}
	return err
}

// remove deletes an acked message that was stored for this consumer alone. Those left behind by a crash are acked, and
// take up space until the stream's max-age.
func (s *stream) remove(m *nats.Msg) {
	if m.Subject != s.retries {
		return
	}
	if meta, err := m.Metadata(); err == nil {
		request := fmt.Appendf(nil, `{"seq":%d,"no_erase":true}`, meta.Sequence.Stream)
		_ = s.t.conn.Publish("$JS.API.STREAM.MSG.DELETE."+s.name, request)
	}
}

// release returns a message to the queue. The server counts that as a delivery. A suspect is stored again instead, so
// that a restart does not count against it.
func (s *stream) release(ctx context.Context, m *nats.Msg) error {
	if m.Subject == s.retries && len(m.Header[envelope.KeySuspect]) > 0 {
		fresh := &nats.Msg{Subject: s.retries, Data: m.Data, Header: maps.Clone(m.Header)}
		maps.DeleteFunc(fresh.Header, func(key string, _ []string) bool { return isServers(key) })
		fresh.Header.Set(idHeader, releaseID+m.Reply) // stored once, even if the ack fails and the release is repeated
		if _, err := s.t.js.PublishMsg(ctx, fresh); err == nil {
			return s.settle(ctx, m, driver.Ack)
		}
	}
	return s.t.conn.Publish(m.Reply, []byte("-NAK"))
}

// Close implements driver.Stream. Messages that arrive meanwhile are returned at once, not after their ack-wait.
func (s *stream) Close(ctx context.Context) error {
	close(s.stop)
	s.t.mu.Lock()
	delete(s.t.streams, s)
	s.t.mu.Unlock()
	s.mu.Lock()
	s.closing, s.ready = true, nil
	s.mu.Unlock()
	s.working.Wait()
	if !s.t.conn.IsConnected() {
		return s.sub.Unsubscribe()
	}
	drained := make(chan struct{})
	s.sub.SetClosedHandler(func(string) { close(drained) })
	err := s.sub.Drain()
	if err == nil {
		select {
		case <-drained:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	s.mu.Lock()
	inFlight, failed := slices.Collect(maps.Keys(s.inFlight)), s.err != nil
	s.mu.Unlock()
	for _, m := range inFlight {
		if failed { // a handler may still have it; when it comes back, it is recognized by its position
			_ = s.t.conn.Publish(m.Reply, []byte("-NAK"))
			continue
		}
		err = errors.Join(err, s.release(ctx, m))
	}
	return errors.Join(err, s.t.conn.FlushWithContext(ctx))
}
