package brokermetrics

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/internal/labelvalues"
)

const (
	// refresh is how long an answer is reused. Scrapes in between cost the broker nothing.
	refresh = 15 * time.Second
	// waitingTimeout bounds one poll. It ends before the scrape, which has 10 s by Prometheus' default.
	waitingTimeout = 5 * time.Second
	// maxTopics bounds the values of the label topic; those with the fewest waiting messages are combined as Other.
	maxTopics = 100
)

// Other is the combined topic of all that have no separate series.
const Other = labelvalues.Other

var waitingMessages = prometheus.NewDesc("redrive_broker_waiting_messages",
	"Messages that wait in the broker. The kind is delayed (first delivery), retry, parked (behind an earlier one of "+
		"its key), ready (for a consumer with room) or dead_letter (to be collected); Kafka has neither of the last two.",
	[]string{"broker", "topic", "kind"}, nil)

// waiting caches the answer of one broker.
type waiting struct {
	broker brokers.DepthReporter

	mu     sync.Mutex // held while the broker is polled: concurrent scrapes share the answer
	asked  time.Time
	series map[series]int64
}

type series struct {
	topic string
	kind  brokers.DepthKind
}

// collect exports nothing for a broker that does not answer: old numbers would look current.
func (w *waiting) collect(ch chan<- prometheus.Metric, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked.IsZero() || time.Since(w.asked) >= refresh {
		ctx, cancel := context.WithTimeout(context.Background(), waitingTimeout)
		defer cancel()
		depths, err := w.broker.Depths(ctx)
		w.series, w.asked = nil, time.Now()
		if err == nil {
			w.series = bounded(depths)
		}
	}
	for s, messages := range w.series {
		ch <- prometheus.MustNewConstMetric(waitingMessages, prometheus.GaugeValue, float64(messages), name, s.topic,
			string(s.kind))
	}
}

// bounded sums over groups, and over the topics beyond the limit.
func bounded(depths []brokers.Depth) map[series]int64 {
	byTopic := map[string]int64{}
	for _, d := range depths {
		byTopic[labelvalues.Clean(d.Topic)] += d.Messages
	}
	topics := slices.SortedFunc(maps.Keys(byTopic), func(a, b string) int {
		return cmp.Or(cmp.Compare(byTopic[b], byTopic[a]), cmp.Compare(a, b))
	})
	rest := map[string]bool{}
	for _, topic := range topics[min(maxTopics, len(topics)):] {
		rest[topic] = true
	}
	sums := map[series]int64{}
	for _, d := range depths {
		s := series{labelvalues.Clean(d.Topic), d.Kind}
		if rest[s.topic] {
			s.topic = Other
		}
		sums[s] += d.Messages
	}
	return sums
}
