//go:build unix

package kafka_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
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
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// The benchmarks compare the driver with plain sarama and watermill-kafka, alternately in the same run, and report
// messages per second and the ratios. They run on kfake, or on the brokers in TEST_KAFKA_BROKERS:
//
//         go test -run '^$' -bench . -benchtime 5x ./brokers/kafka
//
// -benchtime sets the number of rounds, whose medians are compared. 64 callers that each wait for their message have 64
// in flight, so plain sarama is measured both with that many and with everything in flight.

// contender is one of the compared clients.
type contender struct {
	name  string
	n     int                              // messages per round, if different from the others'
	fill  func(topic string)               // prepares the topic, if not nil
	round func(topic string) time.Duration // does the work, and returns how long it took
}

// compare runs the contenders alternately, and compares the others with the first. The processor time per message is
// that of this process, which on kfake includes the cluster.
func compare(b *testing.B, seeds []string, partitions int32, n int, contenders ...contender) {
	b.Helper()
	rates, processor := make([][]float64, len(contenders)), make([][]float64, len(contenders))
	for b.Loop() {
		for i, c := range contenders {
			topic := benchTopic(b, seeds, partitions)
			if c.fill != nil {
				c.fill(topic)
			}
			before := worked(b)
			took := c.round(topic)
			messages := float64(cmp.Or(c.n, n))
			rates[i] = append(rates[i], messages/took.Seconds())
			processor[i] = append(processor[i], float64((worked(b)-before).Nanoseconds())/1000/messages)
		}
	}
	b.ReportMetric(0, "ns/op")
	base := median(rates[0])
	for i, c := range contenders {
		m := median(rates[i])
		b.ReportMetric(m, c.name+"/s")
		b.ReportMetric(median(processor[i]), c.name+"-us")
		if i > 0 {
			b.ReportMetric(m/base, c.name+"/"+contenders[0].name)
		}
	}
}

// worked returns the processor time of this process.
func worked(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func benchSeeds(b *testing.B) []string {
	b.Helper()
	if given := os.Getenv("TEST_KAFKA_BROKERS"); given != "" {
		return strings.Split(given, ",")
	}
	return cluster(b, kfake.DefaultNumPartitions(1)).ListenAddrs()
}

func benchTopic(b *testing.B, seeds []string, partitions int32) string {
	b.Helper()
	admin, err := sarama.NewClusterAdmin(seeds, sarama.NewConfig())
	require.NoError(b, err)
	defer admin.Close()
	topic := "bench-" + watermill.NewShortUUID()
	require.NoError(b, admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1},
		false))
	client, err := sarama.NewClient(seeds, sarama.NewConfig())
	require.NoError(b, err)
	defer client.Close()
	for p := range partitions { // a leader that does not know its role yet would cost the first round 250 ms
		for {
			if _, err := client.GetOffset(topic, p, sarama.OffsetNewest); err == nil {
				break
			}
			require.NoError(b, client.RefreshMetadata(topic))
		}
	}
	return topic
}

func benchBroker(b *testing.B, seeds []string, params ...string) brokers.Broker {
	b.Helper()
	broker, err := brokers.Open(context.Background(),
		"kafka://"+strings.Join(seeds, ",")+"?"+strings.Join(append(params, "group=bench"), "&"))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, broker.Close()) })
	return broker
}

var benchPayload = make([]byte, 100)

func benchMessages(n int) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = message.NewMessage(strconv.Itoa(i), benchPayload)
		batch[i].Metadata[envelope.KeyKafkaKey] = strconv.Itoa(i)
	}
	return batch
}

func safeConfig() *sarama.Config {
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V3_6_0_0
	cfg.Producer.RequiredAcks = sarama.WaitForAll
	cfg.Producer.Idempotent = true
	cfg.Net.MaxOpenRequests = 1
	cfg.Producer.Return.Successes = true
	cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
	return cfg
}

// rawPublish is sarama's AsyncProducer with everything in flight.
func rawPublish(b *testing.B, seeds []string, topic string, n int) time.Duration {
	b.Helper()
	return rawWindow(b, seeds, topic, n, n)
}

// rawWindow is sarama's AsyncProducer with a bounded number of records in flight.
func rawWindow(b *testing.B, seeds []string, topic string, n, window int) time.Duration {
	b.Helper()
	p, err := sarama.NewAsyncProducer(seeds, safeConfig())
	require.NoError(b, err)
	began := time.Now()
	room := make(chan struct{}, window)
	go func() {
		for i := range n {
			room <- struct{}{}
			id := strconv.Itoa(i)
			p.Input() <- &sarama.ProducerMessage{
				Topic: topic, Key: sarama.StringEncoder(id), Value: sarama.ByteEncoder(benchPayload),
				Headers: []sarama.RecordHeader{{Key: []byte("_watermill_message_uuid"), Value: []byte(id)}},
			}
		}
	}()
	for range n {
		<-p.Successes()
		<-room
	}
	took := time.Since(began)
	require.NoError(b, p.Close())
	return took
}

func BenchmarkPublish(b *testing.B) {
	for _, partitions := range []int32{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const n = 50_000
			seeds := benchSeeds(b)
			ours := benchBroker(b, seeds).Publisher()
			stock, err := wkafka.NewPublisher(wkafka.PublisherConfig{
				Brokers: seeds, Marshaler: wkafka.DefaultMarshaler{}, OverwriteSaramaConfig: safeConfig(),
			}, nil)
			require.NoError(b, err)
			compare(b, seeds, partitions, n,
				contender{name: "raw-async", round: func(topic string) time.Duration {
					return rawPublish(b, seeds, topic, n)
				}},
				contender{name: "redrive-batches", round: func(topic string) time.Duration {
					return callers(b, ours, topic, 4, n, 1000)
				}},
				contender{name: "redrive-hundreds", round: func(topic string) time.Duration {
					return callers(b, ours, topic, 4, n, 100)
				}},
				contender{name: "raw-64-in-flight", round: func(topic string) time.Duration {
					return rawWindow(b, seeds, topic, n, 64)
				}},
				contender{name: "redrive-64-callers", round: func(topic string) time.Duration {
					return callers(b, ours, topic, 64, n, 1)
				}},
				contender{name: "watermill-64-callers", round: func(topic string) time.Duration {
					return callers(b, stock, topic, 64, n, 1)
				}},
				contender{name: "watermill-batches", n: n / 10, round: func(topic string) time.Duration {
					return callers(b, stock, topic, 4, n/10, 1000)
				}},
			)
		})
	}
}

// callers publishes n messages from several goroutines in batches.
func callers(b *testing.B, p message.Publisher, topic string, goroutines, n, batch int) time.Duration {
	b.Helper()
	messages := benchMessages(n)
	var (
		wg   sync.WaitGroup
		next atomic.Int64
	)
	began := time.Now()
	for range goroutines {
		wg.Go(func() {
			for {
				at := int(next.Add(int64(batch)))
				if at > n {
					return
				}
				if err := p.Publish(topic, messages[at-batch:at]...); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

// rawConsume is sarama's consumer group with its own commits.
func rawConsume(b *testing.B, seeds []string, topic string, n int) time.Duration {
	b.Helper()
	group, err := sarama.NewConsumerGroup(seeds, watermill.NewShortUUID(), safeConfig())
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	h := &rawHandler{left: int64(n), done: cancel}
	for ctx.Err() == nil {
		require.NoError(b, group.Consume(ctx, []string{topic}, h))
	}
	took := time.Since(h.began)
	require.NoError(b, group.Close())
	return took
}

type rawHandler struct {
	once  sync.Once
	began time.Time
	left  int64
	done  func()
}

func (h *rawHandler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *rawHandler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h *rawHandler) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for m := range c.Messages() {
		h.once.Do(func() { h.began = time.Now() })
		s.MarkMessage(m, "")
		if atomic.AddInt64(&h.left, -1) == 0 {
			h.done()
		}
	}
	return nil
}

// routed runs a router on a subscriber until n messages were handled, and returns the time from the first to the last.
func routed(b *testing.B, sub message.Subscriber, topic string, n int,
	handle message.NoPublishHandlerFunc,
) time.Duration {
	b.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(b, err)
	var (
		handled     atomic.Int64
		began, last time.Time
		done        = make(chan struct{})
	)
	router.AddConsumerHandler("bench", topic, sub, func(m *message.Message) error {
		at := handled.Add(1)
		if at == 1 {
			began = time.Now()
		}
		err := handle(m)
		if at == int64(n) {
			last = time.Now()
			close(done)
		}
		return err
	})
	go func() { _ = router.Run(context.Background()) }()
	<-done
	took := last.Sub(began)
	require.NoError(b, router.Close())
	return took
}

func stockSubscriber(b *testing.B, seeds []string) message.Subscriber {
	b.Helper()
	cfg := safeConfig()
	cfg.Consumer.Return.Errors = true
	sub, err := wkafka.NewSubscriber(wkafka.SubscriberConfig{
		Brokers: seeds, Unmarshaler: wkafka.DefaultMarshaler{}, ConsumerGroup: watermill.NewShortUUID(),
		OverwriteSaramaConfig: cfg,
	}, nil)
	require.NoError(b, err)
	return sub
}

func BenchmarkConsume(b *testing.B) {
	for _, partitions := range []int32{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const n = 100_000
			seeds := benchSeeds(b)
			ours := benchBroker(b, seeds)
			fill := func(topic string) { rawPublish(b, seeds, topic, n) }
			nothing := func(*message.Message) error { return nil }
			compare(b, seeds, partitions, n,
				contender{name: "watermill-router", fill: fill, round: func(topic string) time.Duration {
					return routed(b, stockSubscriber(b, seeds), topic, n, nothing)
				}},
				contender{name: "redrive-router", fill: fill, round: func(topic string) time.Duration {
					return routed(b, ours.Subscriber(brokers.WithGroup(watermill.NewShortUUID())), topic, n, nothing)
				}},
				contender{name: "raw-group", fill: fill, round: func(topic string) time.Duration {
					return rawConsume(b, seeds, topic, n)
				}},
			)
		})
	}
}

// BenchmarkSlowHandler has a handler that takes a millisecond, on one partition.
func BenchmarkSlowHandler(b *testing.B) {
	seeds := benchSeeds(b)
	ours := benchBroker(b, seeds)
	work := func(*message.Message) error {
		<-time.After(time.Millisecond) // real time: the work
		return nil
	}
	const n, many = 1000, 40_000
	fill := func(n int) func(string) { return func(topic string) { rawPublish(b, seeds, topic, n) } }
	compare(b, seeds, 1, n,
		contender{name: "watermill", fill: fill(n), round: func(topic string) time.Duration {
			return routed(b, stockSubscriber(b, seeds), topic, n, work)
		}},
		contender{name: "redrive-concurrency-64", n: many, fill: fill(many), round: func(topic string) time.Duration {
			sub := ours.Subscriber(brokers.WithGroup(watermill.NewShortUUID()), brokers.WithConcurrency(64))
			return routed(b, sub, topic, many, work)
		}},
	)
}

// BenchmarkRetryCycle lets every message fail once: it is read, published to a retry topic without a delay, and read
// again.
func BenchmarkRetryCycle(b *testing.B) {
	for _, partitions := range []int32{1, 8} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			const n = 20_000
			seeds := benchSeeds(b)
			ours := benchBroker(b, seeds)
			stock, err := wkafka.NewPublisher(wkafka.PublisherConfig{
				Brokers: seeds, Marshaler: wkafka.DefaultMarshaler{}, OverwriteSaramaConfig: safeConfig(),
			}, nil)
			require.NoError(b, err)
			fill := func(topic string) { rawPublish(b, seeds, topic, n) }
			compare(b, seeds, partitions, n,
				contender{name: "watermill", fill: fill, round: func(topic string) time.Duration {
					retry := benchTopic(b, seeds, partitions)
					first := routed(b, stockSubscriber(b, seeds), topic, n, func(m *message.Message) error {
						return stock.Publish(retry, m.Copy())
					})
					return first + routed(b, stockSubscriber(b, seeds), retry, n, func(*message.Message) error { return nil })
				}},
				contender{name: "redrive", fill: fill, round: func(topic string) time.Duration {
					sub := ours.Subscriber(brokers.WithGroup(watermill.NewShortUUID()), brokers.WithConcurrency(512))
					return routed(b, sub, topic, 2*n, func(m *message.Message) error {
						if m.Metadata["retried"] != "" {
							return nil
						}
						origin, _ := envelope.OriginFrom(m.Context())
						again := m.Copy()
						again.Metadata["retried"] = "1"
						return ours.Reschedule(context.Background(), *origin, again, 0)
					})
				}},
			)
		})
	}
}

// BenchmarkLateness publishes a thousand messages with delays between 100 ms and 3 s, and reports how late they arrive.
// Delays count from before the publish, so its latency is included.
func BenchmarkLateness(b *testing.B) {
	seeds := benchSeeds(b)
	ours := benchBroker(b, seeds, "concurrency=64")
	topic := benchTopic(b, seeds, 4)
	messages := subscribe(b, ours, topic)
	var late []time.Duration
	for b.Loop() {
		const n = 1000
		random := rand.New(rand.NewPCG(5, 6))
		due := make([]time.Time, n)
		for i := range n {
			m := message.NewMessage(strconv.Itoa(i), benchPayload)
			m.Metadata[envelope.KeyKafkaKey] = strconv.Itoa(i)
			delay := time.Duration(100+random.IntN(2900)) * time.Millisecond
			envelope.SetDelay(m, delay)
			due[i] = time.Now().Add(delay)
			require.NoError(b, ours.Publisher().Publish(topic, m))
		}
		for range n {
			m := <-messages
			i, err := strconv.Atoi(m.UUID)
			require.NoError(b, err)
			late = append(late, time.Since(due[i]))
			m.Ack()
		}
	}
	slices.Sort(late)
	require.Positive(b, late[0], "early")
	b.ReportMetric(0, "ns/op")
	for name, at := range map[string]int{"p50": len(late) / 2, "p99": len(late) * 99 / 100, "max": len(late) - 1} {
		b.ReportMetric(float64(late[at].Milliseconds()), name+"-ms")
	}
}
