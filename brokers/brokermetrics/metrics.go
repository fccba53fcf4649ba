// Package brokermetrics exports to Prometheus how open brokers are: whether they answer, and how many connections and channels are open.
//
//	registry.MustRegister(brokermetrics.New(map[string]brokers.Broker{"main": broker}))
//
// redrive_broker_up is 1 when the broker gave a sign of life within 2 s, else 0. redrive_broker_connections and redrive_broker_channels
// are there for brokers that count them, as RabbitMQ's does.
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

// Collector is a prometheus.Collector of open brokers. It asks them at every scrape, all at once, and has nothing to close.
type Collector struct{ brokers map[string]brokers.Broker }

var _ prometheus.Collector = (*Collector)(nil)

// New makes a Collector of brokers by the names that the label broker shows.
func New(open map[string]brokers.Broker) *Collector { return &Collector{maps.Clone(open)} }

var (
	up          = prometheus.NewDesc("redrive_broker_up", "1 when the broker gave a sign of life, else 0.", []string{"broker"}, nil)
	connections = prometheus.NewDesc("redrive_broker_connections", "Connections that are open.", []string{"broker"}, nil)
	channels    = prometheus.NewDesc("redrive_broker_channels", "Channels that are open.", []string{"broker"}, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- up
	ch <- connections
	ch <- channels
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
		counted, ok := b.(interface {
			Counts() (connections, channels int)
		})
		if !ok {
			continue
		}
		n, m := counted.Counts()
		ch <- prometheus.MustNewConstMetric(connections, prometheus.GaugeValue, float64(n), name)
		ch <- prometheus.MustNewConstMetric(channels, prometheus.GaugeValue, float64(m), name)
	}
}
