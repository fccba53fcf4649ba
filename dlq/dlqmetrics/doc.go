// Package dlqmetrics exports metrics of dead letters to Prometheus: how many wait in the store and for how long,
// operators' actions, redrive runs, the spool, the collector.
//
//	metrics, err := dlqmetrics.New(dlqmetrics.Config{})
//	letters, err := dlq.Open(ctx, url, dlq.WithObserver(metrics))
//	metrics.Watch(dlqmetrics.Sources{Letters: letters})
//	prometheus.MustRegister(metrics)
//
// The metrics are listed in docs/metrics.md. There are two kinds. Gauges are read from the store's kept statistics, at
// most once per [Config.Refresh] for any number of scrapes: every process that watches the same store shows the same
// numbers, so one is enough. Counters and the histogram of the time to resolution are about this process; sum them over
// all processes.
//
// With [Config.LegacyNames] it also exports the gauge dlq_events_total and the histogram dlq_resolution_time_seconds,
// names of an older dead letter table's monitoring. Despite its name the first is not a counter: rate() over it is
// meaningless.
package dlqmetrics
