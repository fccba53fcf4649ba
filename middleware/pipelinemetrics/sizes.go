package pipelinemetrics

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// sizes is a histogram of whole numbers. Each delivery adds to it, and the library's histogram, which adds up fractions
// and keeps count and sum of one moment together, takes twice the atomic operations: a tenth of what metrics cost. Here
// the sum may be an observation ahead of the buckets or behind them; the count never is.
type sizes struct {
	desc   *prometheus.Desc
	bounds []float64

	mu  sync.Mutex // for adding, and for who reads all
	all map[labelValues]*sizeSeries
}

// labelValues are those of the one or two labels that there are; "" for the second where there is one.
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
	counts []atomic.Uint64 // of each bucket alone; the last one is that of what is larger than all bounds
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
