package rabbitmq_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/integration/services"
)

// rounds is how often the contenders of a benchmark run alternately. Results are medians over the rounds, of rates and
// of the ratio of two contenders within one round, because the machine's speed changes from minute to minute.
const rounds = 5

// benchBody is the payload of every message.
var benchBody = bytes.Repeat([]byte("x"), 256)

// arena is a virtual host in which contenders work on queues of one type.
type arena struct {
	*testing.B
	url  string
	kind string
	conn *amqp.Connection
	ch   *amqp.Channel

	broker int   // the broker's process, 0 if it is not ours
	spent  spent // by the last timed work
}

// onQueues runs bench on quorum and on classic queues.
func onQueues(b *testing.B, bench func(a *arena)) {
	b.Helper()
	for _, kind := range []string{"quorum", "classic"} {
		b.Run(kind, func(b *testing.B) { bench(newArena(b, kind)) })
	}
}

func newArena(b *testing.B, kind string) *arena {
	b.Helper()
	server := services.SharedRabbitMQ(b)
	a := &arena{B: b, url: server.VHost(b), kind: kind, broker: server.PID()}
	a.conn, a.ch = a.dial()
	return a
}

// dial opens a separate connection for a contender.
func (a *arena) dial() (*amqp.Connection, *amqp.Channel) {
	a.Helper()
	conn, err := amqp.Dial(a.url)
	require.NoError(a, err)
	a.Cleanup(func() { _ = conn.Close() }) // it may be closed
	ch, err := conn.Channel()
	require.NoError(a, err)
	return conn, ch
}

// queue declares an empty queue.
func (a *arena) queue(name string, args amqp.Table) {
	a.Helper()
	_, err := a.ch.QueueDelete(name, false, false, false)
	require.NoError(a, err)
	all := maps.Clone(args)
	if a.kind == "quorum" {
		if all == nil {
			all = amqp.Table{}
		}
		all["x-queue-type"] = "quorum"
	}
	_, err = a.ch.QueueDeclare(name, true, false, false, false, all)
	require.NoError(a, err)
}

// fill puts n messages into an empty queue of that name.
func (a *arena) fill(name string, n int) {
	a.Helper()
	a.queue(name, nil)
	a.publishRaw(name, n, rawInFlight)
}

// open opens our broker on the arena's queues. It does not declare the queues it reads, so that all contenders use the
// same ones.
func (a *arena) open(change ...func(*brokers.Config)) *rabbitmq.Broker {
	a.Helper()
	cfg := brokers.Config{
		URL:    a.url,
		Naming: brokers.Laravel(),
		Logger: slog.New(slog.DiscardHandler),
		Params: brokers.Params{
			"grid": "false", "prefetch": "250", "queue-type": a.kind, "retry-queue-type": a.kind, "declare": "adopt",
		},
	}
	for _, c := range change {
		c(&cfg)
	}
	b, err := brokers.OpenConfig(a.Context(), cfg)
	require.NoError(a, err)
	a.Cleanup(func() { require.NoError(a, b.Close()) })
	return b.(*rabbitmq.Broker)
}

// contender is one way of processing n messages.
type contender struct {
	name string
	n    int
	run  func() time.Duration
}

// race runs the contenders alternately and reports the rate of each, the ratio of the first to each other, and the cost
// per message in microseconds of processor time, here and in the broker.
func (a *arena) race(contenders ...contender) {
	a.Helper()
	rates := make([][]float64, len(contenders))
	ratios := make([][]float64, len(contenders))
	costs := make([]spent, len(contenders))
	for a.Loop() {
		for range rounds {
			for i, c := range contenders {
				rates[i] = append(rates[i], float64(c.n)/c.run().Seconds())
				ratios[i] = append(ratios[i], rates[0][len(rates[0])-1]/rates[i][len(rates[i])-1])
				costs[i].add(a.spent, c.n)
			}
		}
	}
	for i, c := range contenders {
		a.ReportMetric(median(rates[i]), c.name+"/s")
		a.ReportMetric(micros(costs[i].here, costs[i].messages), c.name+"-us-here")
		if a.broker != 0 {
			a.ReportMetric(micros(costs[i].broker, costs[i].messages), c.name+"-us-broker")
		}
		if i > 0 {
			a.ReportMetric(median(ratios[i]), contenders[0].name+":"+c.name)
		}
	}
	a.ReportMetric(0, "ns/op") // meaningless here
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func (a *arena) timed(work func()) time.Duration {
	a.Helper()
	before, began := a.usage(), time.Now()
	work()
	took := time.Since(began)
	a.spent = a.usage().since(before)
	return took
}

// numbered returns a message whose id is i.
func numbered(i int) *message.Message {
	m := message.NewMessage(strconv.Itoa(i), benchBody)
	m.Metadata["correlation_id"] = "bench"
	return m
}

// spread runs work n times in total from that many goroutines.
func spread(workers, n int, work func(i int)) {
	var all sync.WaitGroup
	var next atomic.Int64
	for range workers {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				work(i)
			}
		})
	}
	all.Wait()
}

// route runs n messages through a router with one handler per subscriber, and returns the time until the last is
// handled.
func (a *arena) route(n int, topic string, middlewares []message.HandlerMiddleware,
	handle func(*message.Message) (done bool, err error), subscribers ...message.Subscriber,
) time.Duration {
	a.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	require.NoError(a, err)
	router.AddMiddleware(middlewares...)
	var left atomic.Int64
	left.Store(int64(n))
	all := make(chan struct{})
	for i, sub := range subscribers {
		router.AddConsumerHandler(fmt.Sprintf("handler-%d", i), topic, sub, func(m *message.Message) error {
			done, err := handle(m)
			if done && left.Add(-1) == 0 {
				close(all)
			}
			return err
		})
	}
	took := a.timed(func() {
		go func() {
			if err := router.Run(a.Context()); err != nil {
				a.Errorf("router: %v", err)
			}
		}()
		select {
		case <-all:
		case <-time.After(2 * time.Minute):
			a.Fatalf("%d of %d messages were not handled", left.Load(), n)
		}
	})
	require.NoError(a, router.Close())
	return took
}

func succeed(*message.Message) (bool, error) { return true, nil }
