package watermill_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	wgochannel "github.com/redrive-go/redrive/brokers/watermill/gochannel"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// retryDelay is the delay of every contender that waits before a retry.
const retryDelay = 100 * time.Millisecond

// bench is a Pub/Sub as in a plain service, and our broker on it. Both handle one message at a time, as Watermill's
// adapters do.
type bench struct {
	n          int // messages per round
	broker     brokers.Broker
	subscriber func(b *testing.B) message.Subscriber
	// fill publishes to a topic that only this round reads.
	fill func(b *testing.B, topic string, n int)
	live bool // filled while it is read, because the Pub/Sub stores nothing
}

// benches are the adapters, on servers that are shared with tests. Delayed messages wait in a queue in PostgreSQL.
var benches = map[string]func(b *testing.B) *bench{
	"amqp":      benchAMQP,
	"kafka":     benchKafka,
	"sql":       func(b *testing.B) *bench { b.Helper(); return benchSQL(b, 1) },
	"sql-batch": func(b *testing.B) *bench { b.Helper(); return benchSQL(b, 100) },
	"gochannel": benchGochannel,
}

// openBench opens the broker of a URL, whose Delays are in PostgreSQL.
func openBench(b *testing.B, url string) brokers.Broker {
	b.Helper()
	b.Setenv("REDRIVE_DELAYS_URL", databases["PostgreSQL"](b))
	return open(b, url)
}

func benchAMQP(b *testing.B) *bench {
	b.Helper()
	url := services.SharedRabbitMQ(b).VHost(b)
	cfg := wamqp.NewDurablePubSubConfig(url, func(topic string) string { return topic + ".billing" })
	cfg.Publish.ChannelPoolSize = 16
	pub, err := wamqp.NewPublisher(cfg, watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, pub.Close()) })
	subscriber := func(b *testing.B) message.Subscriber {
		b.Helper()
		sub, err := wamqp.NewSubscriber(cfg, watermill.NopLogger{})
		require.NoError(b, err)
		return sub
	}
	return &bench{
		n: 5000, broker: openBench(b, with("watermill+"+url, "group=billing")), subscriber: subscriber,
		fill: func(b *testing.B, topic string, n int) {
			b.Helper()
			sub := subscriber(b)
			require.NoError(b, sub.(message.SubscribeInitializer).SubscribeInitialize(topic)) // the queue
			require.NoError(b, sub.Close())
			require.NoError(b, pub.Publish(topic, samples(n)...))
		},
	}
}

func benchKafka(b *testing.B) *bench {
	b.Helper()
	addresses := services.SharedKafka(b).Brokers
	pub, err := wkafka.NewPublisher(wkafka.PublisherConfig{Brokers: addresses, Marshaler: wkafka.DefaultMarshaler{}},
		watermill.NopLogger{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, pub.Close()) })
	broker := openBench(b, "watermill+kafka://"+strings.Join(addresses, ",")+"?partitions=1&group=billing")
	return &bench{
		n: 20_000, broker: broker,
		subscriber: func(b *testing.B) message.Subscriber {
			b.Helper()
			cfg := wkafka.DefaultSaramaSubscriberConfig()
			cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
			sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
				Brokers: addresses, Unmarshaler: wkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg, ConsumerGroup: "billing",
				NackResendSleep: retryDelay,
			}, watermill.NopLogger{})
			require.NoError(b, err)
			return sub
		},
		fill: func(b *testing.B, topic string, n int) {
			b.Helper()
			// The broker creates the topic, with one partition.
			require.NoError(b, broker.Publisher().Publish(topic, sample("0")))
			spreadOver(32, n-1, func(i int) { require.NoError(b, pub.Publish(topic, sample(strconv.Itoa(i+1)))) })
		},
	}
}

// benchSQL is watermill-sql with one message per transaction, which is the broker's default, or with a hundred, which
// is watermill-sql's.
func benchSQL(b *testing.B, batch int) *bench {
	b.Helper()
	url := databases["PostgreSQL"](b)
	db := openDB(b, url)
	schema := wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
	pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true},
		watermill.NopLogger{})
	require.NoError(b, err)
	n := 1000
	if batch > 1 {
		n = 5000
	}
	return &bench{
		n: n, broker: openBench(b, with("watermill+"+url,
			"x-group=billing&x-poll=20ms&x-batch="+strconv.Itoa(batch))),
		subscriber: func(b *testing.B) message.Subscriber {
			b.Helper()
			sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
				ConsumerGroup: "billing", SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
				InitializeSchema: true,
				PollInterval:     20 * time.Millisecond, ResendInterval: retryDelay,
			}, watermill.NopLogger{})
			require.NoError(b, err)
			return sub
		},
		fill: func(b *testing.B, topic string, n int) {
			b.Helper()
			for part := range slices.Chunk(samples(n), 1000) {
				require.NoError(b, pub.Publish(topic, part...))
			}
		},
	}
}

func benchGochannel(b *testing.B) *bench {
	b.Helper()
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	broker, err := wgochannel.New(wgochannel.Config{PubSub: pubSub, Broker: brokers.Config{
		Group: "billing", Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
	}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, errors.Join(broker.Close(), pubSub.Close())) })
	return &bench{
		n: 20_000, live: true, broker: broker,
		subscriber: func(*testing.B) message.Subscriber { return keptOpen{pubSub} },
		fill: func(b *testing.B, topic string, n int) {
			b.Helper()
			require.NoError(b, pubSub.Publish(topic, samples(n)...))
		},
	}
}

// keptOpen is a Pub/Sub that is not closed at the end of a round.
type keptOpen struct{ message.Subscriber }

func (keptOpen) Close() error { return nil }

func samples(n int) []*message.Message {
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = sample(strconv.Itoa(i))
	}
	return all
}

// spreadOver calls do for 0 to n-1 from several goroutines.
func spreadOver(callers, n int, do func(i int)) {
	var next atomic.Int64
	var working sync.WaitGroup
	for range callers {
		working.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	working.Wait()
}

// pipeline returns a pipeline with the configured retries.
func (c *bench) pipeline(b *testing.B) message.HandlerMiddleware {
	b.Helper()
	p, err := middleware.New(middleware.Config{
		Rescheduler: c.broker, DeadLetters: c.broker, Logger: slog.New(slog.DiscardHandler),
		MaxAttempts: 3, Backoff: middleware.Constant(retryDelay),
	})
	require.NoError(b, err)
	return p.Middleware
}

// contender handles messages in its own way.
type contender struct {
	name       string
	n          int
	subscriber func(b *testing.B) message.Subscriber
	chain      []message.HandlerMiddleware
}

// race runs the contenders alternately, and reports the medians of each one's time per message, its processor time in
// this process, and the ratio of its time to the first's within a round.
func (c *bench) race(b *testing.B, handler func(m *message.Message) error, contenders ...contender) {
	b.Helper()
	took, costs, ratios := make([][]float64, len(contenders)), make([][]float64, len(contenders)),
		make([][]float64, len(contenders))
	for b.Loop() {
		for i, of := range contenders {
			wall, processor := c.round(b, of, handler)
			each := wall.Seconds() * 1e6 / float64(of.n)
			took[i] = append(took[i], each)
			costs[i] = append(costs[i], processor.Seconds()*1e6/float64(of.n))
			ratios[i] = append(ratios[i], each/took[0][len(took[0])-1])
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, of := range contenders {
		b.ReportMetric(median(took[i]), of.name+"-us")
		b.ReportMetric(median(costs[i]), of.name+"-cpu-us")
		if i > 0 {
			b.ReportMetric(median(ratios[i]), of.name+"/"+contenders[0].name)
		}
	}
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

var errDown = errors.New("the payment service is down")

// round returns the time from the first message in the handler to the success of the last, and the processor time of
// this process in between.
func (c *bench) round(b *testing.B, of contender, handler func(m *message.Message) error) (wall,
	processor time.Duration,
) {
	b.Helper()
	topic := "bench" + strings.ToLower(watermill.NewShortUUID()[:8])
	if !c.live {
		c.fill(b, topic, of.n)
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	router.AddMiddleware(of.chain...)
	var (
		mu      sync.Mutex
		handled = map[string]bool{}
		began   time.Time
		before  time.Duration
		done    = make(chan struct{})
	)
	router.AddConsumerHandler("billing", topic, of.subscriber(b), func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if began.IsZero() {
			began, before = time.Now(), worked(b)
		}
		if err := handler(m); err != nil {
			return err
		}
		if n := len(handled); n < of.n {
			if handled[m.UUID] = true; n+1 == of.n && len(handled) == of.n {
				wall, processor = time.Since(began), worked(b)-before
				close(done)
			}
		}
		return nil
	})
	ended := await.Run(context.WithoutCancel(b.Context()), b, router)
	if c.live {
		c.fill(b, topic, of.n)
	}
	<-done
	require.NoError(b, router.Close())
	require.NoError(b, <-ended)
	return wall, processor
}

// worked returns the processor time of this process.
func worked(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// failsFirst fails every message's first attempt.
func failsFirst() func(m *message.Message) error {
	failed := map[string]bool{}
	return func(m *message.Message) error {
		if failed[m.UUID] {
			delete(failed, m.UUID)
			return nil
		}
		failed[m.UUID] = true
		return errDown
	}
}

// BenchmarkPipeline: a handler that does nothing, and one that takes a millisecond, on the plain adapter, on the
// adapter with the pipeline, and on the broker over the adapter with the pipeline. Target: at most 1.1 of the plain
// adapter's time.
//
//	go test -run '^$' -bench BenchmarkPipeline -benchtime 7x ./watermill
func BenchmarkPipeline(b *testing.B) {
	for name, open := range benches {
		for takes, handler := range map[string]func(*message.Message) error{
			"0ms": func(*message.Message) error { return nil },
			"1ms": func(*message.Message) error { time.Sleep(time.Millisecond); return nil }, // real time: the work
		} {
			b.Run(name+"/"+takes, func(b *testing.B) {
				c := open(b)
				if takes == "1ms" {
					c.n /= 10
				}
				chain := []message.HandlerMiddleware{c.pipeline(b)}
				ours := func(*testing.B) message.Subscriber { return c.broker.Subscriber() }
				c.race(b, handler,
					contender{"plain", c.n, c.subscriber, nil},
					contender{"plain+pipeline", c.n, c.subscriber, chain},
					contender{"broker+pipeline", c.n, ours, chain},
				)
			})
		}
	}
}

// BenchmarkRetries: every message fails once, and is retried after 100 ms, by the pipeline, by Watermill's Retry in the
// handler, and by its DelayOnError and the adapter's nack, which gochannel and RabbitMQ answer at once.
//
//	go test -run '^$' -bench BenchmarkRetries -benchtime 5x ./watermill
func BenchmarkRetries(b *testing.B) {
	for name, open := range benches {
		if name == "sql-batch" {
			continue
		}
		b.Run(name, func(b *testing.B) {
			c := open(b)
			retry := wm.Retry{
				MaxRetries: 3, InitialInterval: retryDelay, Multiplier: 1, MaxInterval: retryDelay,
				Logger: watermill.NopLogger{},
			}
			late := wm.DelayOnError{InitialInterval: retryDelay, MaxInterval: retryDelay, Multiplier: 1}
			ours := func(*testing.B) message.Subscriber { return c.broker.Subscriber() }
			c.race(b, failsFirst(),
				contender{"broker+pipeline", 1000, ours, []message.HandlerMiddleware{c.pipeline(b)}},
				contender{"Retry", 20, c.subscriber, []message.HandlerMiddleware{retry.Middleware}},
				contender{"DelayOnError", 20, c.subscriber, []message.HandlerMiddleware{late.Middleware}},
			)
		})
	}
}
