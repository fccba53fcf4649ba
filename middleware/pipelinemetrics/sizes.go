package pipelinemetrics

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// sizes is a histogram of integers. Every delivery adds to it, and the library's histogram, which sums floats and keeps
// count and sum consistent, needs twice the atomic operations: a tenth of the cost of all metrics. Here the sum may be
// one observation ahead of the buckets or behind them; the count never is.
type sizes struct {
	desc   *prometheus.Desc
	bounds []float64

	mu  sync.Mutex // for adding, and for reading all
	all map[labelValues]*sizeSeries
}

// labelValues are the values of one or two labels; "" for the second if there is only one.
type labelValues [2]string

var _ prometheus.Collector = (*sizes)(nil)

func newSizes(opts prometheus.HistogramOpts, labels ...string) *sizes {
	return &sizes{
		desc: prometheus.NewDesc(opts.Name, opts.Help, labels, opts.ConstLabels), bounds: opts.Buckets,
		all: map[labelValues]*sizeSeries{},
	}
}

// with returns the series of the labels' values.
func (s *sizes) with(values ...string) *sizeSeries {
	var key labelValues
	copy(key[:], values)
	s.mu.Lock()
	defer s.mu.Unlock()
	series := s.all[key]
	if series == nil {
		series = &sizeSeries{bounds: s.bounds, counts: make([]atomic.Uint64, len(s.bounds)+1), values: values}
		s.all[key] = series
	}
	return series
}

// Describe implements prometheus.Collector.
func (s *sizes) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc }

// Collect implements prometheus.Collector.
func (s *sizes) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, series := range s.all {
		ch <- series.metric(s.desc)
	}
}

type sizeSeries struct {
	bounds []float64
	counts []atomic.Uint64 // of each bucket alone; the last one counts sizes above all bounds
	sum    atomic.Uint64
	values []string
}

// observe adds one size, which is not negative.
func (s *sizeSeries) observe(size int) {
	i, value := 0, float64(size)
	for i < len(s.bounds) && value > s.bounds[i] {
		i++
	}
	s.counts[i].Add(1)
	s.sum.Add(uint64(size)) //nolint:gosec // the length of a payload
}

func (s *sizeSeries) metric(desc *prometheus.Desc) prometheus.Metric {
	count, buckets := uint64(0), make(map[float64]uint64, len(s.bounds))
	for i, bound := range s.bounds {
		count += s.counts[i].Load()
		buckets[bound] = count
	}
	count += s.counts[len(s.bounds)].Load()
	return prometheus.MustNewConstHistogram(desc, count, float64(s.sum.Load()), buckets, s.values...)
}
