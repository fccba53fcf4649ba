package dlqmetrics

import "github.com/prometheus/client_golang/prometheus"

// descs are the gauges, which are made for each scrape.
type descs struct {
	storeUp, entries, oldest, topicOldest, runs, runEntries, legacy *prometheus.Desc
	spoolBytes, spoolLimit, spoolOldest, spoolRecords, spoolActive  *prometheus.Desc
	subscribed, failing, held, collected, givenBack, lastCollected  *prometheus.Desc
}

func newDescs(labels prometheus.Labels) descs {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, variable, labels)
	}
	return descs{
		storeUp: desc("redrive_dlq_store_up", "1 when the store has answered the last question for its statistics, else 0."),
		entries: desc("redrive_dlq_entries", "Dead letters in the store, by status.", "topic", "status"),
		oldest: desc("redrive_dlq_oldest_pending_age_seconds",
			"Age of the PENDING entry that waits longest; 0 when none does."),
		topicOldest: desc("redrive_dlq_topic_oldest_pending_age_seconds",
			"Age of the PENDING entry of a topic that waits longest; 0 when none of the topic does.", "topic"),
		runs: desc("redrive_dlq_runs", "Redrive runs that have not ended, by state.", "state"),
		runEntries: desc("redrive_dlq_run_entries",
			"Entries of the redrive runs that have not ended, by what happened to them.", "state"),
		legacy: desc("dlq_events_total", "Older name: dead letters that are pending (not closed), resolved and "+
			"discarded. A gauge.", "status"),

		spoolBytes: desc("redrive_dlq_spool_bytes", "Bytes that wait in the spool of this process for the store."),
		spoolLimit: desc("redrive_dlq_spool_limit_bytes", "Bytes that the spool may take."),
		spoolOldest: desc("redrive_dlq_spool_oldest_age_seconds",
			"Time since the oldest waiting file was written; 0 when none waits."),
		spoolRecords: desc("redrive_dlq_spool_records_total",
			"Records of the spool: appended, imported into the store, damaged, refused by the store; torn ends of files, "+
				"and files that are missing.", "result"),
		spoolActive: desc("redrive_dlq_spool_active",
			"1 while the store does not answer and dead letters go to the spool, else 0."),

		subscribed: desc("redrive_collector_subscribed", "1 while messages of the source can arrive, else 0.", "broker",
			"source"),
		failing: desc("redrive_collector_failing", "1 while something is wrong with the source, else 0.", "broker",
			"source"),
		held: desc("redrive_collector_held", "Messages of the source that wait for the store.", "broker", "source"),
		collected: desc("redrive_collector_collected_total", "Messages of the source that were stored and acked.",
			"broker", "source"),
		givenBack: desc("redrive_collector_given_back_total",
			"Messages of the source that the store did not take in time.", "broker", "source"),
		lastCollected: desc("redrive_collector_last_collected_timestamp_seconds",
			"When the last message of the source was stored; 0 for never.", "broker", "source"),
	}
}

func (d *descs) describe(ch chan<- *prometheus.Desc, legacy bool) {
	for _, desc := range []*prometheus.Desc{
		d.storeUp, d.entries, d.oldest, d.topicOldest, d.runs, d.runEntries,
		d.spoolBytes, d.spoolLimit, d.spoolOldest, d.spoolRecords, d.spoolActive,
		d.subscribed, d.failing, d.held, d.collected, d.givenBack, d.lastCollected,
	} {
		ch <- desc
	}
	if legacy {
		ch <- d.legacy
	}
}
