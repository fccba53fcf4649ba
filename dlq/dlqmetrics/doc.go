// Package dlqmetrics exports to Prometheus how the dead letters are: what waits in the store and for how long, what was
// done about it, redrive runs, the spool, the collector.
//
//	metrics, err := dlqmetrics.New(dlqmetrics.Config{})
//	letters, err := dlq.Open(ctx, url, dlq.WithObserver(metrics))
//	metrics.Watch(dlqmetrics.Sources{Letters: letters})
//	prometheus.MustRegister(metrics)
//
// The metrics are listed in docs/metrics.md. They are of two kinds. Gauges are read from the store, from its kept
// statistics and at most once in [Config.Refresh], however many scrape: every process that watches the same store shows
// the same numbers, so one needs to. Counters and the histogram of the time to resolution are of what this process has
// done; sum them over all.
//
// With [Config.LegacyNames] the gauge dlq_events_total and the histogram dlq_resolution_time_seconds are there as well,
// under the names that an older dead letter table was watched by. The first has a counter's name without being one:
// rate() over it shows nothing useful, whatever its name says.
package dlqmetrics
