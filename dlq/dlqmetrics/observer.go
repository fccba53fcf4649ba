package dlqmetrics

import (
	"strings"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Put implements dlq.Observer.
func (m *Metrics) Put(letters []*dlq.Entry, receipts []dlq.Receipt) {
	for i, r := range receipts {
		e := letters[i]
		m.stored.WithLabelValues(m.topics.bound(e.Origin.Topic), string(e.Reason), strings.ReplaceAll(string(r.Outcome), " ", "_")).Inc()
		if r.Outcome == dlq.DiedAgain && e.RedriveOf != 0 {
			m.redrives.WithLabelValues("failed").Inc()
		}
	}
}

// Changed implements dlq.Observer.
func (m *Metrics) Changed(c dlq.Change, results []dlq.Result) {
	done := 0.
	for i := range results {
		if results[i].Err != nil {
			continue
		}
		done++
		if e := &results[i].Entry; e.Status == dlq.Resolved {
			by := "operator"
			if c.Action == dlq.ActionSucceed {
				by = "redrive"
			}
			took := max(0, e.ResolvedAt.Sub(e.CreatedAt).Seconds()) // of two machines' clocks
			m.resolution.WithLabelValues(by).Observe(took)
			if m.legacyResolv != nil {
				m.legacyResolv.Observe(took)
			}
		}
	}
	if done == 0 {
		return
	}
	m.changes.WithLabelValues(string(c.Action)).Add(done)
	switch c.Action {
	case dlq.ActionPublished:
		m.redrives.WithLabelValues("published").Add(done)
	case dlq.ActionRelease:
		m.redrives.WithLabelValues("refused").Add(done)
	case dlq.ActionSucceed:
		m.redrives.WithLabelValues("succeeded").Add(done)
	default:
	}
}

// Stepped implements dlq.Observer.
func (m *Metrics) Stepped(s redrive.Step) {
	m.redrives.WithLabelValues("published").Add(float64(len(s.Published)))
	m.redrives.WithLabelValues("refused").Add(float64(len(s.Released)))
	if s.ClosePublished {
		m.redrives.WithLabelValues("succeeded").Add(float64(len(s.Published)))
	}
}

// Failed implements dlq.Observer.
func (m *Metrics) Failed(op string, _ error) { m.storeErrors.WithLabelValues(op).Inc() }

// topics bounds the values of a label.
type topics struct {
	limit int

	mu    sync.Mutex
	known map[string]struct{}
}

func (t *topics) bound(topic string) string {
	topic = label(topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.known[topic]; ok {
		return topic
	}
	if len(t.known) >= t.limit {
		return Other
	}
	t.known[topic] = struct{}{}
	return topic
}

// label makes a text fit for a label: valid and not long.
func label(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
