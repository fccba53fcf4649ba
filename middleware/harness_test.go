package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// harness is a broker in a few lines, for tests in virtual time: it delivers a message to one handler, again after a
// nack, and later after a reschedule. Everything that leaves the pipeline is kept.
type harness struct {
	t        testing.TB
	pipeline *middleware.Pipeline
	handler  message.HandlerFunc
	ctx      context.Context
	origin   *envelope.Origin

	mu          sync.Mutex
	start       time.Time
	runs        []time.Duration // of the handler, since the first delivery
	deliveries  int
	acked       int
	nacked      int
	published   []*message.Message // produced by the handler and published on success
	rescheduled []rescheduled
	letters     []*envelope.DeadLetter
	redriven    []string
	timers      []*time.Timer

	reschedules faults
	sinks       faults
	logs        logbuffer.Buffer
}

type rescheduled struct {
	message *message.Message
	origin  envelope.Origin
	delay   time.Duration
}

// faults fails the next n calls, or all of them if negative.
type faults struct {
	mu    sync.Mutex
	n     int
	calls int
	err   error
}

func (f *faults) next() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.n == 0 {
		return nil
	}
	if f.n > 0 {
		f.n--
	}
	if f.err != nil {
		return f.err
	}
	return errors.New("broker is down")
}

// newHarness completes cfg with its own ports where it has none.
func newHarness(t testing.TB, cfg middleware.Config, h message.HandlerFunc) *harness {
	t.Helper()
	s := &harness{t: t, ctx: t.Context(), origin: &envelope.Origin{Broker: "test", Topic: "orders", Consumer: "billing"}}
	if cfg.Rescheduler == nil {
		cfg.Rescheduler = s
	}
	if cfg.DeadLetters == nil {
		cfg.DeadLetters = s
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewJSONHandler(&s.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if cfg.HandlerName == nil {
		cfg.HandlerName = func(context.Context) string { return "billing-handler" }
	}
	p, err := middleware.New(cfg)
	require.NoError(t, err)
	s.pipeline = p
	s.handler = p.Middleware(func(m *message.Message) ([]*message.Message, error) {
		s.mu.Lock()
		s.runs = append(s.runs, time.Since(s.start))
		s.mu.Unlock()
		return h(m)
	})
	return s
}

var inMemory = middleware.HoldInMemory

func (s *harness) Reschedule(ctx context.Context, o envelope.Origin, m *message.Message, d time.Duration) error {
	if err := s.reschedules.next(); err != nil {
		m.Metadata["spoiled"] = "yes" // the callee owns it: a failed try may have changed it
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rescheduled = append(s.rescheduled, rescheduled{m, o, d})
	again := m.Copy()
	again.Payload = slices.Clone(m.Payload) // as over a network
	s.timers = append(s.timers, time.AfterFunc(d, func() { s.deliver(again) }))
	return nil
}

func (s *harness) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if err := s.sinks.next(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letters = append(s.letters, d)
	return nil
}

func (s *harness) Redriven(_ context.Context, r envelope.Redriven) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redriven = append(s.redriven, r.EntryID+" "+r.MessageID)
	return nil
}

// deliver handles one delivery like Watermill's router, and redelivers at once after a nack, as brokers do.
func (s *harness) deliver(m *message.Message) {
	for s.ctx.Err() == nil {
		s.mu.Lock()
		s.deliveries++
		s.mu.Unlock()
		d := m.Copy()
		d.SetContext(envelope.WithOrigin(s.ctx, s.origin))
		done := make(chan struct{})
		go func() { // as the router does: a handler may end its goroutine
			defer close(done)
			produced, err := s.handler(d)
			if err != nil {
				d.Nack()
				return
			}
			s.mu.Lock()
			s.published = append(s.published, produced...)
			s.mu.Unlock()
			d.Ack()
		}()
		<-done
		select {
		case <-d.Acked():
			s.mu.Lock()
			s.acked++
			s.mu.Unlock()
			return
		case <-d.Nacked():
			s.mu.Lock()
			s.nacked++
			s.mu.Unlock()
		default:
			s.t.Error("the message was neither acked nor nacked: it would hang forever")
			return
		}
	}
}

// count reads a counter of the deliveries.
func (s *harness) count(n *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *n
}

// ran returns the times of the handler's runs so far.
func (s *harness) ran() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Duration(nil), s.runs...)
}

// heal lets all later calls succeed.
func (f *faults) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n = 0
}

// send delivers m as a new message and waits for d of virtual time.
func (s *harness) send(m *message.Message, d time.Duration) {
	s.mu.Lock()
	s.start = time.Now()
	s.mu.Unlock()
	go s.deliver(m)
	time.Sleep(d) // virtual
	synctest.Wait()
}

// sendNow runs one delivery without virtual time, for tests of a single decision.
func (s *harness) sendNow(m *message.Message) {
	s.start = time.Now()
	s.deliver(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, timer := range s.timers {
		timer.Stop()
	}
}

func (s *harness) letter() *envelope.DeadLetter {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(s.t, s.letters, 1)
	return s.letters[0]
}

func order(t testing.TB, opts ...envelope.Option) *message.Message {
	t.Helper()
	e, err := envelope.New("shop", "orders", map[string]int{"order": 7}, map[string]string{"correlation_id": "abc-123"},
		opts...)
	require.NoError(t, err)
	return e.Message()
}

var quiet = slog.New(slog.DiscardHandler)

func failing(err error) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { return nil, err }
}

var errTimeout = context.DeadlineExceeded
