// Package brokermetrics exports the state of open brokers to Prometheus: whether they answer, how many connections and
// channels are open, and how many messages wait in them.
//
//	registry.MustRegister(brokermetrics.New(map[string]brokers.Broker{"main": broker}))
//
// redrive_broker_up is 1 if the broker answered within 2 s, else 0. redrive_broker_connections and
// redrive_broker_channels exist for brokers that count them, such as RabbitMQ's, and so does
// redrive_broker_acks_failed_total: messages that were handled and are redelivered, because the connection ended before
// their acks.
//
// redrive_broker_waiting_messages exists for brokers that implement brokers.DepthReporter: memory, RabbitMQ, Kafka,
// NATS and the SQL queue, whose Depths methods define what they count. They are polled every 15 s at most, and a broker
// that does not answer within 5 s has no such series until it is polled again. Processes on the same queues count the
// same messages: take the maximum.
package brokermetrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/labelvalues"
)

const timeout = 2 * time.Second

// Collector is a prometheus.Collector of open brokers. It polls them at scrapes, all at once, and needs no Close. It is
// safe for concurrent use.
type Collector struct {
	brokers map[string]brokers.Broker
	waiting map[string]*waiting
}

var _ prometheus.Collector = (*Collector)(nil)

// New creates a Collector of brokers by the names for the label broker. What a broker counts is also found behind a
// wrapper with a method Unwrap() brokers.Broker, which returns nil while there is none.
func New(open map[string]brokers.Broker) *Collector {
	c := &Collector{brokers: maps.Clone(open), waiting: map[string]*waiting{}}
	for name, b := range open {
		if counts, ok := b.(brokers.DepthReporter); ok {
			c.waiting[name] = &waiting{broker: counts}
		}
	}
	return c
}

// AcksFailed returns a function that counts the messages of b that were handled and are redelivered because their acks
// could not be sent; it returns 0 while b does not count them. It is for pipelinemetrics.Config.
func AcksFailed(b brokers.Broker) func() uint64 {
	return func() uint64 {
		if counted, ok := behind(b).(interface{ AcksFailed() uint64 }); ok {
			return counted.AcksFailed()
		}
		return 0
	}
}

// behind returns the broker behind a wrapper, nil while there is none.
func behind(b brokers.Broker) any {
	if late, ok := b.(interface{ Unwrap() brokers.Broker }); ok {
		return late.Unwrap()
	}
	return b
}

var (
	up = prometheus.NewDesc("redrive_broker_up", "1 if the broker answers, else 0.",
		[]string{"broker"}, nil)
	connections = prometheus.NewDesc("redrive_broker_connections", "Open connections.", []string{"broker"}, nil)
	channels    = prometheus.NewDesc("redrive_broker_channels", "Open channels.", []string{"broker"}, nil)
	acksFailed  = prometheus.NewDesc("redrive_broker_acks_failed_total",
		"Messages that were handled and are redelivered, because their acks could not be sent.", []string{"broker"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- up
	ch <- connections
	ch <- channels
	ch <- acksFailed
	ch <- waitingMessages
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var asking sync.WaitGroup
	defer asking.Wait()
	for name, b := range c.brokers {
		asking.Go(func() {
			alive := 1.
			if b.Ping(ctx) != nil {
				alive = 0
			}
			ch <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, alive, name)
		})
		if w, ok := c.waiting[name]; ok {
			asking.Go(func() { w.collect(ch, name) })
		}
		open := behind(b)
		if counted, ok := open.(interface {
			Counts() (connections, channels int)
		}); ok {
			n, m := counted.Counts()
			ch <- prometheus.MustNewConstMetric(connections, prometheus.GaugeValue, float64(n), name)
			ch <- prometheus.MustNewConstMetric(channels, prometheus.GaugeValue, float64(m), name)
		}
		if counted, ok := open.(interface{ AcksFailed() uint64 }); ok {
			ch <- prometheus.MustNewConstMetric(acksFailed, prometheus.CounterValue, float64(counted.AcksFailed()), name)
		}
	}
}

const (
	// refresh is how long an answer is reused. Scrapes in between cost the broker nothing.
	refresh = 15 * time.Second
	// waitingTimeout bounds one poll. It ends before the scrape, which has 10 s by Prometheus' default.
	waitingTimeout = 5 * time.Second
	// maxTopics bounds the values of the label topic; those with the fewest waiting messages are combined as Other.
	maxTopics = 100
)

// Other is the combined topic of all that have no separate series.
const Other = labelvalues.Other

var waitingMessages = prometheus.NewDesc("redrive_broker_waiting_messages",
	"Messages that wait in the broker. The kind is delayed (first delivery), retry, parked (behind an earlier one of "+
		"its key), ready (for a consumer with room) or dead_letter (to be collected); Kafka has neither of the last two.",
	[]string{"broker", "topic", "kind"}, nil)

// waiting caches the answer of one broker.
type waiting struct {
	broker brokers.DepthReporter

	mu     sync.Mutex // held while the broker is polled: concurrent scrapes share the answer
	asked  time.Time
	series map[series]int64
}

type series struct {
	topic string
	kind  brokers.DepthKind
}

// collect exports nothing for a broker that does not answer: old numbers would look current.
func (w *waiting) collect(ch chan<- prometheus.Metric, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked.IsZero() || time.Since(w.asked) >= refresh {
		ctx, cancel := context.WithTimeout(context.Background(), waitingTimeout)
		defer cancel()
		depths, err := w.broker.Depths(ctx)
		w.series, w.asked = nil, time.Now()
		if err == nil {
			w.series = bounded(depths)
		}
	}
	for s, messages := range w.series {
		ch <- prometheus.MustNewConstMetric(waitingMessages, prometheus.GaugeValue, float64(messages), name, s.topic,
			string(s.kind))
	}
}

// bounded sums over groups, and over the topics beyond the limit.
func bounded(depths []brokers.Depth) map[series]int64 {
	byTopic := map[string]int64{}
	for _, d := range depths {
		byTopic[labelvalues.Clean(d.Topic)] += d.Messages
	}
	topics := slices.SortedFunc(maps.Keys(byTopic), func(a, b string) int {
		return cmp.Or(cmp.Compare(byTopic[b], byTopic[a]), cmp.Compare(a, b))
	})
	rest := map[string]bool{}
	for _, topic := range topics[min(maxTopics, len(topics)):] {
		rest[topic] = true
	}
	sums := map[series]int64{}
	for _, d := range depths {
		s := series{labelvalues.Clean(d.Topic), d.Kind}
		if rest[s.topic] {
			s.topic = Other
		}
		sums[s] += d.Messages
	}
	return sums
}
