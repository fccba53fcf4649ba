package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	theirs "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// outlet is a publisher that fails chosen messages.
type outlet struct {
	mu        sync.Mutex
	fail      func(m *message.Message) error
	tried     int
	published []string
	events    *events
}

func (o *outlet) Publish(_ string, messages ...*message.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range messages {
		o.tried++
		if o.fail != nil {
			if err := o.fail(m); err != nil {
				return err
			}
		}
		o.published = append(o.published, m.UUID)
		o.events.add("published " + m.UUID)
	}
	return nil
}

func (*outlet) Close() error { return nil }

// events are the reports, in order.
type events struct {
	middleware.NopObserver

	mu  sync.Mutex
	log []string
}

func (e *events) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.log = append(e.log, what)
}

func (e *events) seen() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

func (e *events) Finished(_ context.Context, f middleware.Finished) { e.add(f.Outcome.String()) }

func (e *events) DeadLetter(_ context.Context, d *envelope.DeadLetter) error {
	e.add("dead: " + string(d.Reason) + ": " + d.Err.Message)
	return nil
}

func (e *events) Redriven(_ context.Context, r envelope.Redriven) error {
	e.add("redriven " + r.EntryID)
	return nil
}

// rig is how [producing] sets up its router.
type rig struct {
	decorated bool // the publisher, with the pipeline's decorator
	hold      bool // retries are held in memory
	config    middleware.Config
	outside   []message.HandlerMiddleware
}

// producing runs a router whose handler returns messages with these names, nil without one, until the bubble is quiet
// for an hour.
func producing(t *testing.T, out *outlet, with rig, names func(run int) []string) (log []string, runs int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
		e := &events{}
		out.events = e
		cfg := with.config
		cfg.DeadLetters, cfg.Observer, cfg.Logger, cfg.NackDelay = e, e, quiet, time.Minute
		cfg.Backoff, cfg.MaxAttempts = middleware.Constant(time.Minute), 3
		cfg.Rescheduler = middleware.ReschedulerFunc(
			func(_ context.Context, _ envelope.Origin, m *message.Message, d time.Duration) error {
				e.add("retry")
				time.AfterFunc(d, func() { _ = pubSub.Publish("orders", m) })
				return nil
			})
		if with.hold {
			cfg.Rescheduler = middleware.HoldInMemory
		}
		pipeline, err := middleware.New(cfg)
		require.NoError(t, err)
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		require.NoError(t, err)
		router.AddMiddleware(append(with.outside, pipeline.Middleware)...)
		if with.decorated {
			router.AddPublisherDecorators(pipeline.PublisherDecorator)
		}
		router.AddHandler("orders", "orders", pubSub, "invoices", out, func(*message.Message) ([]*message.Message, error) {
			runs++
			var produced []*message.Message
			for _, name := range names(runs) {
				m := message.NewMessage(name, nil)
				if name == "" {
					m = nil
				}
				produced = append(produced, m)
			}
			if runs > 50 {
				return nil, nil // a loop ends
			}
			return produced, nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- router.Run(ctx) }()
		<-router.Running()
		m := order(t)
		m.Metadata[envelope.KeyRedriveID] = "entry-9"
		require.NoError(t, pubSub.Publish("orders", m))
		time.Sleep(time.Hour)
		synctest.Wait()
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, pubSub.Close())
		log = e.seen()
	})
	return log, runs
}

func two(int) []string { return []string{"a", "b"} }

// The router used to nack: 116 runs in 44 s, each of them attempt 1 and reported as a success, and with it the redrive.
func TestProduced_UnpublishableIsAFailedAttempt(t *testing.T) {
	for _, hold := range []bool{false, true} {
		out := &outlet{fail: func(*message.Message) error { return errors.New("no such topic") }}
		log, runs := producing(t, out, rig{decorated: true, hold: hold}, two)
		require.Equal(t, 3, runs, "hold %t", hold)
		require.Equal(t, 3, out.tried, "messages after the failed one are not published")
		want := []string{
			"retry", "retry", "retry", "retry", "dead: exhausted: produced message not published: no such topic",
			"dead_letter",
		}
		if hold {
			want = []string{"retry", "retry", want[4], want[5]}
		}
		require.Equal(t, want, log)
	}
}

// The publisher's error was classified as the handler's: ServiceBus skipped the message of a handler that had
// succeeded, so that its results were lost, and the other presets dead-lettered it at the first failure.
func TestProduced_ThePublishersErrorIsNoVerdict(t *testing.T) {
	for name, err := range map[string]error{
		"SQLSTATE of a missing table":   pg("42P01"),
		"HTTP status":                   middleware.HTTPStatus(403, nil),
		"Permanent() bool":              says{permanent: true},
		"marked permanent":              middleware.Permanent(errors.New("no such topic")),
		"marked skip":                   middleware.Skip(errors.New("no such topic")),
		"an unknown error":              errors.New("no such topic"),
		"too large is as it always was": fmt.Errorf("the message: %w", envelope.ErrTooLarge),
	} {
		for preset, config := range map[string]middleware.Config{
			"default": {}, "ServiceBus": middleware.ServiceBus(3, s), "StoreOnly": middleware.StoreOnly(),
		} {
			t.Run(preset+"/"+name, func(t *testing.T) {
				want := 3
				if preset == "StoreOnly" && errors.Is(err, envelope.ErrTooLarge) {
					want = 1 // no retry makes it smaller
				}
				out := &outlet{fail: func(*message.Message) error { return err }}
				log, runs := producing(t, out, rig{decorated: true, config: config}, two)
				require.Equal(t, want, runs)
				require.Equal(t, "dead_letter", log[len(log)-1])
			})
		}
	}
}

// With a subscriber of Watermill's, see also docstest.TestComposition_UnpublishableResults.
func TestProduced_UnpublishableWithATimeoutOutside(t *testing.T) {
	for _, hold := range []bool{false, true} {
		out := &outlet{fail: func(*message.Message) error { return errors.New("no such topic") }}
		log, runs := producing(t, out, rig{
			decorated: true, hold: hold, outside: []message.HandlerMiddleware{theirs.Timeout(time.Minute)},
		}, two)
		require.Equal(t, 3, runs, "hold %t", hold)
		require.Equal(t, "dead_letter", log[len(log)-1])
	}
}

// Watermill's router panics on one, after the pipeline: the message was redelivered uncounted, forever.
func TestProduced_NilIsNoMessage(t *testing.T) {
	for _, tt := range []struct{ produced, published []string }{
		{[]string{""}, nil},
		{[]string{"a", "", "b", ""}, []string{"a", "b"}},
	} {
		for _, decorated := range []bool{false, true} {
			out := &outlet{}
			log, runs := producing(t, out, rig{decorated: decorated}, func(int) []string { return tt.produced })
			require.Equal(t, 1, runs)
			require.Equal(t, tt.published, out.published)
			require.Equal(t, []string{"redriven entry-9", "success"}, log[len(log)-2:])
		}
	}
}

// The duration is the handler's: it included that of the failed publish.
func TestProduced_DurationOfTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took durations
		h := newHarness(t, middleware.Config{MaxAttempts: 1, Observer: &took},
			func(*message.Message) ([]*message.Message, error) {
				time.Sleep(s) // virtual
				return []*message.Message{message.NewMessage("a", nil)}, nil
			})
		m := order(t)
		m.SetContext(inRouter(t.Context(), t))
		produced, err := h.handler(m)
		require.NoError(t, err)
		require.NoError(t, envelope.PublishProduced(func(...*message.Message) error {
			time.Sleep(5 * s) // virtual
			return errors.New("closed")
		}, produced...))
		m.Ack()
		require.Equal(t, []time.Duration{s}, took.all())
	})
}

type durations struct {
	middleware.NopObserver

	mu   sync.Mutex
	took []time.Duration
}

func (d *durations) Finished(_ context.Context, f middleware.Finished) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.took = append(d.took, f.Duration)
}

func (d *durations) all() []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.took)
}

// The ack of a handler confirms nothing: with an observer it was reported as a success, and the failed publish lost the
// results.
func TestProduced_AckedByTheHandler(t *testing.T) {
	for name, observer := range map[string]middleware.Observer{"": nil, "observed": &events{}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := middleware.Config{MaxAttempts: 1, Observer: observer, Logger: quiet}
				h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
					m.Ack()
					return []*message.Message{message.NewMessage("a", nil)}, nil
				})
				m := order(t)
				m.SetContext(inRouter(t.Context(), t))
				produced, err := h.handler(m)
				require.NoError(t, err)
				synctest.Wait()
				fail := func(...*message.Message) error {
					time.Sleep(time.Hour) // virtual: longer than it takes for a publisher that does not report
					return errors.New("closed")
				}
				require.NoError(t, envelope.PublishProduced(fail, produced...))
				require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
			})
		})
	}
}

// A foreign publisher does not report, and the ack of the handler precedes it: a success was never reported.
func TestProduced_AckedByTheHandlerForAForeignPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var took durations
		cfg := middleware.Config{Observer: &took, Logger: quiet, PublishTimeout: s}
		h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
			m.Ack()
			return []*message.Message{message.NewMessage("a", nil)}, nil
		})
		m := envelope.PrepareRedrive(order(t), envelope.Redrive{ID: "9", Count: 1})
		m.SetContext(inRouter(t.Context(), t))
		_, err := h.handler(m)
		require.NoError(t, err)
		require.Empty(t, took.all())
		time.Sleep(s) // virtual
		synctest.Wait()
		require.Len(t, took.all(), 1)
		require.Len(t, h.redriven, 1)
	})
}

func TestProduced_RetriedUntilPublished(t *testing.T) {
	for _, hold := range []bool{false, true} {
		failures := 0
		out := &outlet{fail: func(m *message.Message) error {
			if failures++; failures == 2 {
				return errors.New("not now") // the second message of the first run
			}
			return nil
		}}
		log, runs := producing(t, out, rig{decorated: true, hold: hold}, two)
		require.Equal(t, 2, runs)
		require.Equal(t, []string{"a", "a", "b"}, out.published)
		retry := []string{"retry", "retry"} // the rescheduler's line and the observer's
		if hold {
			retry = retry[:1]
		}
		require.Equal(t, append(append([]string{"published a"}, retry...), "published a", "published b", "redriven entry-9",
			"success"), log,
			"a success is reported when everything is published")
	}
}

// A publisher that reports nothing is neither ours nor decorated: then the ack is the report.
func TestProduced_SuccessIsReportedAfterThePublish(t *testing.T) {
	for _, decorated := range []bool{false, true} {
		log, runs := producing(t, &outlet{}, rig{decorated: decorated}, two)
		require.Equal(t, 1, runs)
		require.Equal(t, []string{"published a", "published b", "redriven entry-9", "success"}, log)
	}
}

func TestProduced_UndecoratedFailureIsNotASuccess(t *testing.T) {
	out := &outlet{fail: func(*message.Message) error { return errors.New("no such topic") }}
	log, _ := producing(t, out, rig{}, two)
	slices.Sort(log)
	require.Equal(t, append(slices.Repeat([]string{"not_settled"}, 50), "redriven entry-9", "success"), log,
		"only the run that produced nothing")
}

// Shutdown is not a failure: the message is nacked. A subscriber's context with a deadline looked like one that a
// middleware outside had derived, and a message that waited in memory did not notice the shutdown.
func TestProduced_UnpublishableAtShutdown(t *testing.T) {
	deadline := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 9*time.Hour)
	}
	for name, tt := range map[string]struct {
		subscribers func(context.Context) (context.Context, context.CancelFunc)
		outside     message.HandlerMiddleware
		attempts    int
		closedAfter time.Duration
	}{
		"":                        {subscribers: context.WithCancel, attempts: 1},
		"a subscriber's deadline": {subscribers: deadline, attempts: 1},
		"a foreign context":       {subscribers: deadline, outside: setsForeign, attempts: 1},
		"a timeout outside":       {subscribers: deadline, outside: theirs.Timeout(time.Minute), attempts: 1},
		"held": {
			subscribers: context.WithCancel, outside: theirs.Timeout(time.Minute), attempts: 2, closedAfter: time.Minute,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := tt.subscribers(t.Context())
				h := newHarness(t, middleware.Config{
					MaxAttempts: tt.attempts, Rescheduler: inMemory, Backoff: middleware.Constant(time.Hour),
				}, func(*message.Message) ([]*message.Message, error) {
					return []*message.Message{message.NewMessage("a", nil)}, nil
				})
				handler := h.handler
				if tt.outside != nil {
					handler = tt.outside(handler)
				}
				m := order(t)
				m.SetContext(inRouter(ctx, t))
				produced, err := handler(m)
				require.NoError(t, err)
				start := time.Now()
				if tt.closedAfter == 0 {
					stop()
				}
				time.AfterFunc(tt.closedAfter, stop)
				err = envelope.PublishProduced(func(...*message.Message) error { return errors.New("closed") }, produced...)
				m.Nack() // as the router does
				require.ErrorIs(t, err, middleware.ErrGivenBack)
				require.Equal(t, tt.closedAfter, time.Since(start))
				require.Empty(t, h.letters)
			})
		})
	}
}

type opaque interface{ context.Context }

// setsForeign is a middleware that sets a context whose parent is unknown.
func setsForeign(next message.HandlerFunc) message.HandlerFunc {
	return theirs.Timeout(time.Minute)(func(m *message.Message) ([]*message.Message, error) {
		m.SetContext(struct{ opaque }{m.Context()})
		return next(m)
	})
}

// inRouter returns ctx with a router's values.
func inRouter(ctx context.Context, t *testing.T) context.Context {
	t.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{Persistent: true, PreserveContext: true}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	routed := make(chan context.Context, 1)
	router.AddConsumerHandler("orders", "orders", pubSub, func(m *message.Message) error {
		routed <- m.Context()
		return nil
	})
	go func() { _ = router.Run(t.Context()) }()
	<-router.Running()
	m := order(t)
	m.SetContext(ctx)
	require.NoError(t, pubSub.Publish("orders", m))
	in := <-routed
	require.NoError(t, router.Close())
	return in
}

// A router closes a publisher with the first of its handlers that stops. The results of handlers still running were
// failed attempts then, and dead letters at the last attempt.
func TestPublisherDecorator_SharedIsClosedWithTheLastHandler(t *testing.T) {
	pipeline, err := middleware.New(middleware.Config{DeadLetters: &events{}, Rescheduler: middleware.HoldInMemory})
	require.NoError(t, err)
	out := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	var handlers [2]message.Publisher
	for i := range handlers {
		handlers[i], err = pipeline.PublisherDecorator(out)
		require.NoError(t, err)
	}
	require.NoError(t, handlers[0].Close())
	require.NoError(t, handlers[0].Close())
	require.NoError(t, handlers[1].Publish("invoices", message.NewMessage("a", nil)))
	require.NoError(t, handlers[1].Close())
	require.Error(t, handlers[1].Publish("invoices", message.NewMessage("b", nil)), "closed with the last one")
}
