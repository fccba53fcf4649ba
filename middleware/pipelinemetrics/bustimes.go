package pipelinemetrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// busTimes exposes a histogram as the counters that the bus's queries read. They count durations by
// event_processed_duration itself and compute quantiles from its buckets; Prometheus' client rejects a histogram next
// to a counter of the same name, so each of the histogram's series is a counter here.
type busTimes struct {
	vec                       *prometheus.HistogramVec
	plain, count, sum, bucket *prometheus.Desc
}

var _ prometheus.Collector = (*busTimes)(nil)

func newBusTimes(cfg *Config, ms []float64) *busTimes {
	const name, of = "event_processed_duration", "Service bus name: how long the handler ran, in ms. "
	labels := []string{"nano_service_name", "event_name", "exit_status", "retry"}
	desc := func(suffix, what string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name+suffix, of+what, append(labels, more...), cfg.ConstLabels)
	}
	return &busTimes{
		vec:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: of + "Runs.", Buckets: ms}, labels),
		plain:  desc("", "Runs."),
		count:  desc("_count", "Runs."),
		sum:    desc("_sum", "The sum."),
		bucket: desc("_bucket", "Runs of at most le.", "le"),
	}
}

// Describe implements prometheus.Collector.
func (b *busTimes) Describe(ch chan<- *prometheus.Desc) {
	ch <- b.plain
	ch <- b.count
	ch <- b.sum
	ch <- b.bucket
}

// Collect implements prometheus.Collector.
func (b *busTimes) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		b.vec.Collect(all)
	}()
	for m := range all {
		var d dto.Metric
		if err := m.Write(&d); err != nil {
			ch <- prometheus.NewInvalidMetric(b.plain, err)
			continue
		}
		by := map[string]string{}
		for _, l := range d.GetLabel() {
			by[l.GetName()] = l.GetValue()
		}
		values := []string{by["nano_service_name"], by["event_name"], by["exit_status"], by["retry"]}
		show := func(desc *prometheus.Desc, value float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, append(values, more...)...) //nolint:promlinter // described above
		}
		h := d.GetHistogram()
		runs := float64(h.GetSampleCount())
		show(b.plain, runs)
		show(b.count, runs)
		show(b.sum, h.GetSampleSum())
		for _, bucket := range h.GetBucket() {
			show(b.bucket, float64(bucket.GetCumulativeCount()), strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
		}
		show(b.bucket, runs, "+Inf")
	}
}
