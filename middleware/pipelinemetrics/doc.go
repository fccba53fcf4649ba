// Package pipelinemetrics exports what a retry pipeline does to Prometheus: attempts, outcomes, durations, delays, dead
// letters, circuits. A [Metrics] is both the pipeline's observer and the registry's collector:
//
//	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{})
//	prometheus.MustRegister(metrics)
//	pipeline, err := middleware.New(middleware.Config{Observer: metrics, ...})
//
// The metrics are listed in docs/metrics.md, with their labels. Besides traces it is one of several:
// middleware.Observers{metrics, tracer}.
//
// # Labels
//
// topic, handler and event come from messages, so each of them has at most [Config.MaxValues] values: whatever comes
// after these is counted as "other". attempt is first, retry or last (middleware.Tag), outcome one of the pipeline's.
//
// # Histograms
//
// Every histogram has classic buckets. Those of times have native ones too, unless these are switched off: Prometheus
// takes them where it is configured to scrape them. Sizes need no finer buckets, and the observation is a tenth of what
// metrics cost.
//
// # Names of a service bus
//
// With [Config.ServiceBus] the metrics are exported under the names and labels of the PHP service bus as well
// (event_started_count, event_processed_duration in milliseconds, ...), so that its dashboards and alerts keep working.
//
// # Cost
//
// An observation looks up its series and adds to atomics; it allocates nothing. BenchmarkSuccess puts it alongside a
// pipeline without metrics: 1.75 times that for a message that succeeds at once, 1.94 with native histograms, with no
// router and a handler that does nothing. Half of it is what any observer costs (a second look at the clock, the
// description of the delivery).
package pipelinemetrics
