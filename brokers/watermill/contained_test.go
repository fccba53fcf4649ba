package watermill_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

var quiet = slog.New(slog.DiscardHandler)

// rude is a subscriber with typical faults of adapters: it redelivers a nacked message at once, delivers another one
// while it is being closed, and closes its channel when the connection is lost.
type rude struct {
	mu      sync.Mutex
	opened  int
	nacks   int
	pending []*message.Message
	lose    chan struct{}
	late    *message.Message
	closed  chan struct{}
}

func newRude(messages ...*message.Message) *rude {
	return &rude{pending: messages, lose: make(chan struct{}), closed: make(chan struct{})}
}

func (r *rude) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	r.mu.Lock()
	r.opened++
	queue := r.pending
	r.mu.Unlock()
	out := make(chan *message.Message)
	go func() {
		defer close(out)
		for len(queue) > 0 {
			m := queue[0].Copy()
			select {
			case out <- m:
			case <-ctx.Done():
				return
			}
			select {
			case <-m.Acked():
				queue = queue[1:]
				r.mu.Lock()
				r.pending = queue
				r.mu.Unlock()
			case <-m.Nacked():
				r.mu.Lock()
				r.nacks++
				r.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-r.lose:
		case <-ctx.Done():
			if r.late != nil {
				out <- r.late
			}
		}
	}()
	return out, nil
}

func (r *rude) Close() error {
	select {
	case <-r.closed:
	default:
		close(r.closed)
	}
	return nil
}

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }

func openRude(t *testing.T, r *rude) brokers.Broker {
	t.Helper()
	b, err := watermill.New(watermill.Config{Publisher: nowhere{}, Subscriber: r, Broker: brokers.Config{Logger: quiet}})
	require.NoError(t, err)
	return b
}

func TestContained_NacksArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRude(message.NewMessage("1", nil))
		b := openRude(t, r)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		start := time.Now()
		for range 5 {
			m := <-messages
			require.Equal(t, "1", m.UUID)
			m.Nack()
		}
		require.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond*(1+2+4+8))
		require.Zero(t, r.nacks, "the subscriber gets no nack")
		(<-messages).Ack()
		synctest.Wait()
		require.Empty(t, r.pending)
		require.NoError(t, b.Close())
		<-r.closed
	})
}

// handsOut is a subscriber of one message after a nil one.
type handsOut struct{ *rude }

func (h handsOut) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	messages, err := h.rude.Subscribe(ctx, topic)
	out := make(chan *message.Message, 1)
	out <- nil
	go func() {
		defer close(out)
		for m := range messages {
			out <- m
		}
	}()
	return out, err
}

func TestContained_NilMessagesAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := watermill.New(watermill.Config{
			Publisher: nowhere{}, Subscriber: handsOut{newRude(message.NewMessage("1", nil))},
			Broker: brokers.Config{Logger: quiet},
		})
		require.NoError(t, err)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		m := <-messages
		require.Equal(t, "1", m.UUID)
		m.Ack()
		require.NoError(t, b.Close())
	})
}

func TestContained_MessagesDeliveredAtCloseAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRude()
		r.late = message.NewMessage("late", nil)
		b := openRude(t, r)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.NoError(t, b.Close())
		_, open := <-messages
		require.False(t, open)
		<-r.late.Nacked()
	})
}

func TestContained_AChannelThatEndsIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRude()
		b := openRude(t, r)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		r.mu.Lock()
		r.pending = []*message.Message{message.NewMessage("after", nil)}
		r.mu.Unlock()
		close(r.lose)
		m := <-messages
		require.Equal(t, "after", m.UUID)
		m.Ack()
		time.Sleep(time.Minute)
		synctest.Wait()
		r.mu.Lock()
		require.Less(t, r.opened, 100, "paced")
		r.mu.Unlock()
		require.NoError(t, b.Close())
	})
}

// slow publishes once it is released, and must not be closed before that.
type slow struct {
	publishes, release, closed chan struct{}
}

func (s *slow) Publish(string, ...*message.Message) error {
	s.publishes <- struct{}{}
	<-s.release
	return nil
}

func (s *slow) Close() error {
	close(s.closed)
	return nil
}

// watermill-kafka used to panic when a broker was closed during a publication that had timed out.
func TestContained_APublisherIsNotClosedDuringACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{publishes: make(chan struct{}, 1), release: make(chan struct{}), closed: make(chan struct{})}
		b, err := watermill.New(watermill.Config{
			Publisher: s, Subscriber: newRude(), Broker: brokers.Config{Logger: quiet},
		})
		require.NoError(t, err)
		require.ErrorIs(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)), context.DeadlineExceeded)
		<-s.publishes
		require.NoError(t, b.Close())
		select {
		case <-s.closed:
			require.Fail(t, "closed while it was publishing")
		default:
		}
		close(s.release)
		<-s.closed
	})
}

// Handlers get the values that the subscriber has put into the contexts of its messages, such as a transaction.
func TestContexts_CarryTheSubscribersValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openRude(t, newRude(message.NewMessage("1", nil)))
		type key struct{}
		messages, err := b.Subscriber().Subscribe(context.WithValue(t.Context(), key{}, "mine"), "orders")
		require.NoError(t, err)
		m := <-messages
		require.Equal(t, "mine", m.Context().Value(key{}))
		origin, ok := envelope.OriginFrom(m.Context())
		require.True(t, ok)
		require.Equal(t, "orders", origin.Topic)
		m.Ack()
		require.NoError(t, b.Close())
	})
}

func TestNew_NamesEveryFault(t *testing.T) {
	_, err := watermill.New(watermill.Config{AckGrace: -1, MaxMessageBytes: -1})
	for _, want := range []string{
		"Publisher is required", "Subscriber, for one group, or NewSubscriber", "AckGrace",
		"MaxMessageBytes",
	} {
		require.ErrorContains(t, err, want)
	}
	dull := openRude(t, newRude())
	_, err = watermill.New(watermill.Config{Publisher: nowhere{}, Subscriber: newRude(), Delays: dull})
	require.ErrorContains(t, err, "a watermill broker cannot delay as configured")
	require.ErrorContains(t, err, "Server is required with Delays")
	require.NoError(t, dull.Close())
}

// A driver has connected its publisher before it calls Open. When Open fails, nothing else can close the connection.
func TestOpen_ClosesThePublisherWhenItFails(t *testing.T) {
	t.Setenv("BROKEN_DELAYS_URL", "nosuch://user:pw-secret@localhost")
	for name, c := range map[string]struct {
		config watermill.Config
		url    string
		want   string
	}{
		"the configuration is invalid": {watermill.Config{}, "watermill://", "Subscriber"},
		"the Delays cannot be opened": {
			watermill.Config{Subscriber: newRude()}, "watermill://?delays-env=BROKEN_DELAYS_URL", "BROKEN_DELAYS_URL",
		},
		"there is not even a publisher": {
			watermill.Config{Subscriber: newRude()}, "watermill://", "Publisher is required",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, params := c.config, watermill.URLParams()
			var err error
			cfg.Broker, err = brokers.Config{URL: c.url, Logger: quiet}.Resolve(params)
			require.NoError(t, err)
			var closes closeCounter
			if c.want != "Publisher is required" {
				cfg.Publisher = &closes
			}
			_, err = watermill.Open(t.Context(), cfg, params, nil)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "pw-secret")
			require.Equal(t, cfg.Publisher != nil, closes.n == 1)
		})
	}
}

type closeCounter struct {
	nowhere

	n int
}

func (c *closeCounter) Close() error {
	c.n++
	return nil
}

// A message that cannot be stored is refused at once.
func TestRefusals(t *testing.T) {
	b := openRude(t, newRude())
	require.Zero(t, b.Capabilities().MaxDelay)
	require.False(t, b.Capabilities().Groups)
	_, err := b.Subscriber(brokers.WithGroup("billing")).Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	require.ErrorContains(t, err, "configure NewSubscriber")
	m := message.NewMessage("1", nil)
	require.ErrorIs(t, b.Reschedule(t.Context(), envelope.Origin{Topic: "orders"}, m, time.Second), brokers.ErrUnsupported)
	require.ErrorContains(t, b.Reschedule(t.Context(), envelope.Origin{Topic: "orders"}, m, 0), "configure Delays")
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Ping(t.Context()), brokers.ErrClosed)
}

// A retry waits where no other group gets it, and the producer's message is preserved.
func TestDelays_KeepHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays, err := memory.New(brokers.Config{Logger: quiet})
		require.NoError(t, err)
		r := newRude(message.NewMessage("1", []byte("x")))
		b, err := watermill.New(watermill.Config{
			Publisher: nowhere{}, Subscriber: r, Delays: delays, Server: "test",
			Broker: brokers.Config{Logger: quiet},
		})
		require.NoError(t, err)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		first := <-messages
		origin, _ := envelope.OriginFrom(first.Context())
		again := first.Copy()
		again.Metadata["customer"] = "7"
		require.NoError(t, b.Reschedule(first.Context(), *origin, again, time.Hour))
		first.Ack()
		start := time.Now()
		second := <-messages
		require.Equal(t, time.Hour, time.Since(start))
		require.Equal(t, "7", second.Metadata["customer"])
		require.Empty(t, second.Metadata[envelope.KeyOriginalDelay], "the delay of a retry is not a first-delivery delay")
		second.Ack()
		require.NoError(t, b.Close())
		require.NoError(t, delays.Close())
	})
}

// A program that does not import the adapter's package gets an error that names the missing import and what is
// registered.
func TestOpen_UnknownSchemesNameTheirImport(t *testing.T) {
	for scheme, leaf := range map[string]string{
		"watermill+amqp": "amqp", "watermill+kafka": "kafka", "watermill+postgres": "sql", "watermill+sqlite": "sql",
		"gochannel": "gochannel",
	} {
		_, err := brokers.Open(t.Context(), scheme+"://user:pw-secret@localhost/db")
		require.ErrorIs(t, err, brokers.ErrUnknownScheme)
		require.ErrorContains(t, err, "registered are: mem")
		require.ErrorContains(t, err, `forgotten import? try _ "github.com/redrive-go/redrive/brokers/watermill/`+leaf+`"`)
		require.NotContains(t, err.Error(), "pw-secret")
	}
	_, err := brokers.Open(t.Context(), "watermill+kafak://localhost")
	require.ErrorContains(t, err, "did you mean watermill+kafka?")
}

// A pipeline that retries is refused at start if retries cannot be stored anywhere; one that never retries is not
// refused.
func TestPipeline_IsRefusedWithoutDelays(t *testing.T) {
	b := openRude(t, newRude())
	_, err := middleware.New(middleware.Config{Rescheduler: b, DeadLetters: b})
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	require.ErrorContains(t, err, "configure Delays")
	_, err = middleware.New(middleware.Config{Rescheduler: b, DeadLetters: b, MaxAttempts: 1})
	require.NoError(t, err)
	_, err = middleware.New(middleware.Config{
		Rescheduler: b, DeadLetters: b, MaxAttempts: 1,
		Handlers: map[string]middleware.HandlerConfig{"orders": {MaxAttempts: 3}},
	})
	require.ErrorContains(t, err, `Handlers["orders"]`)
	require.NoError(t, b.Close())

	delays, err := memory.New(brokers.Config{Logger: quiet})
	require.NoError(t, err)
	b, err = watermill.New(watermill.Config{
		Publisher: nowhere{}, Subscriber: newRude(), Delays: delays, Server: "test",
		Broker: brokers.Config{Logger: quiet},
	})
	require.NoError(t, err)
	_, err = middleware.New(middleware.Config{Rescheduler: b, DeadLetters: b})
	require.NoError(t, err)
	require.NoError(t, errors.Join(b.Close(), delays.Close()))
}
