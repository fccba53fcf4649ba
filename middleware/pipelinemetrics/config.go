package pipelinemetrics

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Other replaces the values of a label beyond its limit.
const Other = "other"

// DefaultMaxValues is how many values a label that comes from messages may have.
const DefaultMaxValues = 100

// Config specifies what to export. The zero Config is ready for use.
type Config struct {
	// MaxValues is how many values each of the labels topic, handler, event and circuit may have; further values become
	// [Other]. Defaults to [DefaultMaxValues].
	MaxValues int
	// DurationBuckets are the classic buckets of durations, in seconds. Default to 1 ms to 1 min, about two for each
	// doubling.
	DurationBuckets []float64
	// DelayBuckets are the classic buckets of retry delays, in seconds. Default to 100 ms to 1 day.
	DelayBuckets []float64
	// PayloadBuckets are the classic buckets of payload sizes, in bytes. Default to 64 B to 16 MiB.
	PayloadBuckets []float64
	// NativeFactor is the growth factor of native buckets. Defaults to 1.1; a negative one omits native buckets.
	NativeFactor float64
	// ServiceBus, unless empty, is the nano_service_name under which the metrics are also exported with the names of the
	// PHP service bus, which do not follow Prometheus' conventions.
	ServiceBus string
	// AcksFailed returns how many messages were handled but could not be acked, for the bus's
	// rmq_consumer_ack_failed_total: brokermetrics.AcksFailed of the service's broker. Defaults to none, which exports 0.
	AcksFailed func() uint64
	// ConstLabels are added to every metric.
	ConstLabels prometheus.Labels
}

func (c *Config) setDefaults() {
	c.MaxValues = cmp.Or(c.MaxValues, DefaultMaxValues)
	c.NativeFactor = cmp.Or(c.NativeFactor, 1.1)
	if c.DurationBuckets == nil {
		c.DurationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	}
	if c.DelayBuckets == nil {
		c.DelayBuckets = []float64{.1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 24 * 3600}
	}
	if c.PayloadBuckets == nil {
		c.PayloadBuckets = prometheus.ExponentialBuckets(64, 4, 10)
	}
}

func (c *Config) validate() error {
	var errs []error
	if c.MaxValues < 0 {
		errs = append(errs, fmt.Errorf("MaxValues is %d: it cannot be negative; 0 is the default of %d", c.MaxValues,
			DefaultMaxValues))
	}
	if c.NativeFactor >= 0 && c.NativeFactor <= 1 {
		errs = append(errs, fmt.Errorf("NativeFactor is %v: it must be above 1, or negative for no native buckets",
			c.NativeFactor))
	}
	for name, buckets := range map[string][]float64{
		"DurationBuckets": c.DurationBuckets, "DelayBuckets": c.DelayBuckets, "PayloadBuckets": c.PayloadBuckets,
	} {
		if len(buckets) == 0 || !slices.IsSorted(buckets) || len(slices.Compact(slices.Clone(buckets))) != len(buckets) {
			errs = append(errs, fmt.Errorf("%s must be strictly increasing and not empty", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) classic(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: c.ConstLabels}
}

// histogram also has native buckets, unless they are switched off.
func (c *Config) histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	opts := c.classic(name, help, buckets)
	if c.NativeFactor > 1 {
		opts.NativeHistogramBucketFactor = c.NativeFactor
		opts.NativeHistogramMaxBucketNumber = 160
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	return opts
}

func (c *Config) counter(name, help string) prometheus.CounterOpts {
	return prometheus.CounterOpts{Name: name, Help: help, ConstLabels: c.ConstLabels}
}
