package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

var silent = slog.New(slog.DiscardHandler)

// printer stands for a dead letter store.
var printer = middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
	fmt.Printf("dead letter: %s after %d attempts: %s\n", d.Reason, d.Attempts, d.Err.Message)
	return nil
})

// A pipeline on any Watermill router. With a broker of this module, Rescheduler is the broker and nothing blocks.
func Example() {
	done := make(chan struct{})
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory, // a broker, if nothing may block
		DeadLetters: middleware.DeadLetterFunc(func(ctx context.Context, d *envelope.DeadLetter) error {
			defer close(done)
			return printer(ctx, d)
		}),
		MaxAttempts: middleware.Retries(2),
		Backoff:     middleware.FromOriginalDelay(time.Millisecond),
		Logger:      silent,
	})
	if err != nil {
		panic(err)
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		panic(err)
	}
	router.AddMiddleware(pipeline.Middleware)
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router.AddConsumerHandler("billing", "orders", pubSub, func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		fmt.Println(attempt)
		return errors.New("payment service is down")
	})
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = router.Run(ctx) }()
	<-router.Running()
	_ = pubSub.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte(`{"order":7}`)))
	<-done
	_ = pubSub.Close()
	stop()
	<-stopped
	// Output:
	// attempt 1 of 3
	// attempt 2 of 3
	// attempt 3 of 3
	// dead letter: exhausted after 3 attempts: payment service is down
}

// run gives one message to a handler behind a pipeline, as a router would.
func run(cfg middleware.Config, h message.NoPublishHandlerFunc) {
	cfg.Logger = silent
	if cfg.DeadLetters == nil {
		cfg.DeadLetters = printer
	}
	if cfg.Rescheduler == nil {
		cfg.Rescheduler = middleware.ReschedulerFunc(
			func(_ context.Context, _ envelope.Origin, m *message.Message, d time.Duration) error {
				fmt.Printf("again in %s, retry count %s\n", d, m.Metadata[envelope.KeyRetryCount])
				return nil
			})
	}
	pipeline, err := middleware.New(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	m := message.NewMessage("018f0c5e", []byte(`{"order":7}`))
	_, err = pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) { return nil, h(m) })(m)
	if err != nil {
		fmt.Println("nack:", err)
	}
}

func ExampleNew() {
	_, err := middleware.New(middleware.Config{
		MaxAttempts: -1, Backoff: middleware.Steps(),
	})
	fmt.Println(err)
	// Output:
	// middleware: invalid config: DeadLetters is required: pass the broker, a dead letter store, or both by Sinks
	// Rescheduler is required: pass the broker, or middleware.HoldInMemory to keep waiting messages unacked in this process
	// MaxAttempts is -1: it counts runs including the first, from 1 (never retry) to 1000000; 0 is the default of 4
	// Backoff: Steps needs at least one delay; None() retries at once
}

func ExamplePermanent() {
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.Permanent(errors.New("invalid IBAN"))
	})
	// Output: dead letter: permanent after 1 attempts: invalid IBAN
}

func ExampleHTTPStatus() {
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.HTTPStatus(429, map[string][]string{"Retry-After": {"42"}})
	})
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.HTTPStatus(404, nil)
	})
	// Output:
	// again in 42s, retry count 1
	// dead letter: permanent after 1 attempts: http status 404
}

func ExampleRetryAfter() {
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.RetryAfter(errors.New("maintenance until noon"), 90*time.Minute)
	})
	// Output: again in 1h30m0s, retry count 1
}

func ExampleRetryable() {
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.Retryable(middleware.HTTPStatus(404, nil)) // the order may be a moment behind its event
	})
	// Output: again in 1s, retry count 1
}

func ExampleDefer() {
	run(middleware.Config{}, func(*message.Message) error {
		return middleware.Defer(middleware.ErrNotYet, time.Minute) // no attempt is consumed
	})
	// Output: again in 1m0s, retry count
}

func ExampleSkip() {
	cfg := middleware.Config{Hooks: middleware.Hooks{OnSkip: func(_ context.Context, p middleware.SkipParams) error {
		fmt.Println("skipped:", p.Decision.Err)
		return nil
	}}}
	run(cfg, func(*message.Message) error { return middleware.Skip(errors.New("already paid")) })
	// Output: skipped: already paid
}

func ExampleMatchError() {
	errDates := errors.New("dates are inconsistent")
	run(middleware.Config{Rules: []middleware.Rule{
		middleware.MatchError(errDates, middleware.KindPermanent, "business rule"),
		middleware.MatchType[*middleware.PanicError](middleware.KindPermanent, "bug"),
		middleware.MatchFunc(func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }, middleware.KindDefer,
			"overload"),
	}}, func(*message.Message) error { return fmt.Errorf("order 7: %w", errDates) })
	// Output: dead letter: permanent after 1 attempts: order 7: dates are inconsistent
}

func ExampleClassifier() {
	c, err := middleware.NewClassifier()
	if err != nil {
		panic(err)
	}
	v := c.Classify(middleware.HTTPStatus(503, map[string][]string{"Retry-After": {"5"}}))
	fmt.Println(v.Kind, v.Rule, v.After)
	// Output: retryable http 503 5s
}

func ExampleTimeline() {
	fmt.Println(middleware.Timeline(middleware.FromOriginalDelay(time.Second), middleware.Retries(3), 10*time.Second))
	fmt.Println(middleware.Timeline(middleware.Steps(time.Second, 5*time.Second, time.Minute), middleware.Tries(5), 0))
	fmt.Println(middleware.Timeline(middleware.Constant(5*time.Second), middleware.Cycles(3), 0))
	fmt.Println(middleware.Timeline(middleware.WithCap(middleware.Exponential(time.Second, 3), 10*time.Second), 5, 0))
	// Output:
	// [0s 10s 30s 1m10s]
	// [0s 1s 6s 1m6s 2m6s]
	// [0s 5s 10s 15s]
	// [0s 1s 4s 13s 23s]
}

func ExampleServiceBus() {
	cfg := middleware.ServiceBus(3, time.Second, 5*time.Second, time.Minute)
	cfg.Rules = []middleware.Rule{middleware.MatchError(errTimeout, middleware.KindRetryable, "slow")}
	run(cfg, func(*message.Message) error { return errTimeout })
	// Output: again in 1s, retry count 1
}

func ExampleConfig_handlers() {
	cfg := middleware.Laravel(5)
	cfg.HandlerName = func(context.Context) string { return "mail" } // a router sets this itself
	cfg.Handlers = map[string]middleware.HandlerConfig{"mail": middleware.ExternalAPIRetries()}
	run(cfg, func(m *message.Message) error {
		fmt.Println(middleware.AttemptFrom(m.Context()))
		return errors.New("smtp: try again")
	})
	// Output:
	// attempt 1 of 3 true
	// again in 5s, retry count 1
}

func ExampleBreaker() {
	cfg := middleware.Config{Breaker: &middleware.Breaker{
		Failures: 1, Delay: time.Minute,
		Key: func(*message.Message) string { return "payment" },
	}}
	cfg.Hooks.OnDefer = func(_ context.Context, p middleware.DeferParams) error {
		fmt.Println(errors.Is(p.Decision.Err, middleware.ErrCircuitOpen), p.Message.Metadata[envelope.KeyRetryCount])
		return nil
	}
	cfg.DeadLetters, cfg.Logger = printer, silent
	cfg.Rescheduler = middleware.ReschedulerFunc(
		func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil })
	pipeline, err := middleware.New(cfg)
	if err != nil {
		panic(err)
	}
	h := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) {
		fmt.Println("called")
		return nil, errTimeout
	})
	_, _ = h(message.NewMessage("1", nil))
	_, _ = h(message.NewMessage("2", nil)) // deferred for the rest of the minute, no attempt consumed
	// Output:
	// called
	// true
}

func ExampleSinks() {
	store := middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error {
		return errors.New("database is down")
	})
	spool := middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error {
		fmt.Println("spooled")
		return nil
	})
	cfg := middleware.Config{DeadLetters: middleware.Sinks{printer, store}, Fallback: spool, PublishTries: 1}
	run(cfg, func(*message.Message) error { return middleware.Permanent(errors.New("x")) })
	// Output:
	// dead letter: permanent after 1 attempts: x
	// spooled
}

func ExampleConfig_systemEvents() {
	cfg := middleware.Config{SystemEvents: map[string]message.NoPublishHandlerFunc{
		"system.ping.1": func(*message.Message) error { fmt.Println("pong"); return nil },
	}, Rescheduler: middleware.HoldInMemory, DeadLetters: printer, Logger: silent}
	pipeline, err := middleware.New(cfg)
	if err != nil {
		panic(err)
	}
	ping := message.NewMessage("1", nil)
	ping.Metadata[envelope.KeyEvent] = "system.ping.1"
	_, err = pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { panic("never called") })(ping)
	fmt.Println(err)
	// Output:
	// pong
	// <nil>
}

func ExamplePipeline_Decide() {
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory, DeadLetters: printer,
		Logger: silent,
	})
	if err != nil {
		panic(err)
	}
	m := message.NewMessage("1", nil)
	m.Metadata[envelope.KeyRetryCount] = "3"
	d := pipeline.Decide(m, errors.New("payment service is down"))
	fmt.Println(d.Outcome, d.Reason, d.Attempt)
	fmt.Println(d.Err)
	// Output:
	// dead_letter exhausted attempt 4 of 4
	// gave up after 4 attempts: payment service is down
}

// metrics counts outcomes; it has only the methods that it needs.
type metrics struct {
	middleware.NopObserver
	outcomes map[middleware.Outcome]int
}

func (m metrics) Finished(_ context.Context, e middleware.Finished) { m.outcomes[e.Outcome]++ }

func ExampleObserver() {
	m := metrics{outcomes: map[middleware.Outcome]int{}}
	run(middleware.Config{Observer: m}, func(*message.Message) error { return errTimeout })
	run(middleware.Config{Observer: m}, func(*message.Message) error { return nil })
	fmt.Println(m.outcomes)
	// Output:
	// again in 1s, retry count 1
	// map[success:1 retry:1]
}
