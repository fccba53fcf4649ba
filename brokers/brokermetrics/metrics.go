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
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/brokers"
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
