package rabbitmq_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// BenchmarkPublish: 64 callers with one message each, compared with the raw client with 1,000 in flight and with 64,
// the most that such callers can have, and with Watermill's publisher with 64 callers and 64 channels. Target: 0.9 of
// raw. 1,000 callers show the effect of more callers.
func BenchmarkPublish(b *testing.B) {
	onQueues(b, func(a *arena) {
		const n = 10_000
		pub := a.open().Publisher()
		theirs := a.watermillPublisher()
		on := func(publish func()) func() time.Duration {
			return func() time.Duration {
				a.queue("bench", nil)
				return a.timed(publish)
			}
		}
		a.race(
			contender{"ours-64-callers", n, on(func() {
				spread(64, n, func(i int) { require.NoError(a, pub.Publish("bench", numbered(i))) })
			})},
			contender{"raw-1000-in-flight", n, func() time.Duration {
				a.queue("bench", nil)
				return a.publishRaw("bench", n, rawInFlight)
			}},
			contender{"raw-64-in-flight", n, func() time.Duration {
				a.queue("bench", nil)
				return a.publishRaw("bench", n, 64)
			}},
			contender{"ours-1000-callers", n, on(func() {
				spread(rawInFlight, n, func(i int) { require.NoError(a, pub.Publish("bench", numbered(i))) })
			})},
			contender{"watermill-64-callers", n / 4, on(func() {
				spread(64, n/4, func(i int) { require.NoError(a, theirs.Publish("bench", numbered(i))) })
			})},
			contender{"raw-batches-of-100", n, func() time.Duration {
				a.queue("bench", nil)
				return a.batchesRaw("bench", n, 100)
			}},
			contender{"ours-batches-of-100", n, on(func() {
				spread(1, n/100, func(i int) {
					batch := make([]*message.Message, 100)
					for j := range batch {
						batch[j] = numbered(i*100 + j)
					}
					require.NoError(a, pub.Publish("bench", batch...))
				})
			})},
		)
	})
}

// BenchmarkPublishInFlight: the best any client achieves with 64 publications in flight, which is what 64 callers
// waiting for their confirms have: raw publishers over 1 to 8 channels of one connection with combined writes. Target:
// 0.9 of the best.
func BenchmarkPublishInFlight(b *testing.B) {
	onQueues(b, func(a *arena) {
		const n, callers = 10_000, 64
		pub := a.open().Publisher()
		all := []contender{{"ours-64-callers", n, func() time.Duration {
			a.queue("bench", nil)
			return a.timed(func() {
				spread(callers, n, func(i int) { require.NoError(a, pub.Publish("bench", numbered(i))) })
			})
		}}}
		for _, channels := range []int{1, 2, 4, 8} {
			all = append(all, contender{fmt.Sprintf("raw-64-over-%d", channels), n, func() time.Duration {
				a.queue("bench", nil)
				return a.publishOver("bench", n, callers, channels)
			}})
		}
		a.race(all...)
	})
}

// BenchmarkConsume: a handler that does nothing, one at a time, 64 at once, and as many as the prefetch, which leaves
// no slot in which an ack could wait for others. Target: 0.9 of raw, and through the router 0.95 of a router with a
// hand-written subscriber.
func BenchmarkConsume(b *testing.B) {
	const n = 20_000
	onQueues(b, func(a *arena) {
		ours := func(name string, handlers int) contender {
			broker := a.open(func(c *brokers.Config) { c.Concurrency = handlers })
			return contender{name, n, func() time.Duration {
				a.fill("bench", n)
				sub := broker.Subscriber()
				took := a.timed(func() {
					messages, err := sub.Subscribe(a.Context(), "bench")
					require.NoError(a, err)
					for range n {
						(<-messages).Ack()
					}
				})
				require.NoError(a, sub.Close())
				return took
			}}
		}
		a.race(
			ours("ours-64", 64),
			ours("ours-1", 1),
			ours("ours-250", rawPrefetch),
			contender{"raw", n, func() time.Duration {
				a.fill("bench", n)
				return a.consumeRaw("bench", n, 1, false, func(*amqp.Delivery) {})
			}},
			contender{"raw-multiple-ack", n, func() time.Duration {
				a.fill("bench", n)
				return a.consumeRaw("bench", n, 1, true, func(*amqp.Delivery) {})
			}},
		)
	})
}

// BenchmarkConsumeRouter is BenchmarkConsume through Watermill's router.
func BenchmarkConsumeRouter(b *testing.B) {
	const n = 20_000
	onQueues(b, func(a *arena) {
		broker := a.open(func(c *brokers.Config) { c.Concurrency = rawPrefetch })
		routed := func(n int, subscribers func() []message.Subscriber) func() time.Duration {
			return func() time.Duration {
				a.fill("bench", n)
				return a.route(n, "bench", nil, succeed, subscribers()...)
			}
		}
		a.race(
			contender{"ours-routed", n, routed(n,
				func() []message.Subscriber { return []message.Subscriber{broker.Subscriber()} })},
			contender{"raw-routed", n, routed(n, func() []message.Subscriber { return []message.Subscriber{rawSubscriber{a}} })},
			contender{"watermill-routed", n, routed(n, func() []message.Subscriber { return a.watermillSubscribers(1) })},
		)
	})
}

// BenchmarkConcurrency: a handler that takes 1 ms, behind the whole pipeline, 64 at once. Target: 0.9 of 64 raw
// workers.
func BenchmarkConcurrency(b *testing.B) {
	const n = 20_000
	onQueues(b, func(a *arena) {
		broker := a.open(func(c *brokers.Config) { c.Concurrency = 64 })
		chain := []message.HandlerMiddleware{a.pipeline(broker, time.Second).Middleware}
		slow := func(*message.Message) (bool, error) {
			time.Sleep(time.Millisecond) // real time: the work
			return true, nil
		}
		a.race(
			contender{"ours-64", n, func() time.Duration {
				a.fill("bench", n)
				return a.route(n, "bench", chain, slow, broker.Subscriber())
			}},
			contender{"raw-64-workers", n, func() time.Duration {
				a.fill("bench", n)
				return a.consumeRaw("bench", n, 64, false, func(*amqp.Delivery) {
					time.Sleep(time.Millisecond) // real time: the work
				})
			}},
			contender{"watermill-8-subscriptions", n / 4, func() time.Duration {
				a.fill("bench", n/4)
				return a.route(n/4, "bench", nil, slow, a.watermillSubscribers(8)...)
			}},
		)
	})
}

// pipeline retries once, after delay.
func (a *arena) pipeline(broker brokers.Broker, delay time.Duration) *middleware.Pipeline {
	a.Helper()
	p, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 1000, Backoff: middleware.Constant(delay),
	})
	require.NoError(a, err)
	return p
}

// BenchmarkRetryCycle: every message fails once and is retried through a delay queue of 100 ms. Targets: 0.85 of the
// raw client with 250 in flight, 2.5 times Watermill's parts; at most 3 connections and 4 + concurrency channels.
func BenchmarkRetryCycle(b *testing.B) {
	const n, delay = 10_000, 100 * time.Millisecond
	onQueues(b, func(a *arena) {
		broker := a.open(func(c *brokers.Config) {
			c.Concurrency = rawPrefetch
			c.Delays = []time.Duration{delay}
		})
		chain := []message.HandlerMiddleware{a.pipeline(broker, delay).Middleware}
		back := amqp.Table{
			"x-message-ttl": delay.Milliseconds(), "x-dead-letter-exchange": "",
			"x-dead-letter-routing-key": "bench",
		}
		if a.kind == "quorum" {
			back["x-dead-letter-strategy"], back["x-overflow"] = "at-least-once", "reject-publish"
		}
		theirs := a.watermillPublisher()
		prepare := func(n int) {
			a.queue("bench_retry", back)
			a.fill("bench", n)
		}
		connections, channels := 0, 0
		a.race(
			contender{"ours", n, func() time.Duration {
				prepare(n)
				took := a.route(n, "bench", chain, func(m *message.Message) (bool, error) {
					if m.Metadata["x-retry-count"] != "" {
						return true, nil
					}
					stats := broker.Stats()
					connections, channels = max(connections, stats.Connections), max(channels, stats.Channels)
					return false, errDown
				}, broker.Subscriber())
				return took
			}},
			contender{"raw-250-in-flight", n, func() time.Duration {
				prepare(n)
				return a.retryRaw("bench", "bench_retry", n)
			}},
			contender{"watermill-8-subscriptions", n / 2, func() time.Duration {
				prepare(n / 2)
				return a.retryWatermill("bench", "bench_retry", n/2, theirs)
			}},
		)
		a.ReportMetric(float64(connections), "connections")
		a.ReportMetric(float64(channels), "channels")
		require.LessOrEqual(a, connections, 3)
		require.LessOrEqual(a, channels, 4+rawPrefetch)
	})
}

// isBad reports whether m is among the 1 % that fail in BenchmarkNonBlocking.
func isBad(m *message.Message) bool {
	n, err := strconv.Atoi(m.UUID)
	return err == nil && n%100 == 0
}

// BenchmarkNonBlocking: the rate of the good messages while 1 % of all fail for 5 s. Target: 0.95 of the rate without
// failures. Watermill's Retry, which waits in the handler, is measured for comparison.
func BenchmarkNonBlocking(b *testing.B) {
	const n, delay = 40_000, time.Second
	onQueues(b, func(a *arena) {
		broker := a.open(func(c *brokers.Config) {
			c.Concurrency = 64
			c.Delays = []time.Duration{delay}
		})
		chain := []message.HandlerMiddleware{a.pipeline(broker, delay).Middleware}
		good := func(failFor time.Duration) func() time.Duration {
			return func() time.Duration {
				a.fill("bench", n)
				until := time.Now().Add(failFor)
				return a.route(n-n/100, "bench", chain, func(m *message.Message) (bool, error) {
					if !isBad(m) {
						return true, nil
					}
					if time.Now().Before(until) {
						return false, fmt.Errorf("message %s: %w", m.UUID, errDown)
					}
					return false, nil
				}, broker.Subscriber())
			}
		}
		blocked := []float64{}
		a.race(
			contender{"with-failures", n - n/100, good(5 * time.Second)},
			contender{"without", n - n/100, good(0)},
		)
		for range rounds {
			a.fill("bench", n)
			blocked = append(blocked, a.blockedByRetry("bench"))
		}
		a.ReportMetric(median(blocked), "watermill-retry/s")
	})
}
