package dlqmetrics

import (
	"strings"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// Put implements dlq.Observer.
func (m *Metrics) Put(letters []*dlq.Entry, receipts []driver.Receipt) {
	for i, r := range receipts {
		e := letters[i]
		m.stored.WithLabelValues(m.topics.bound(e.Origin.Topic), m.reasons.bound(string(e.Reason)),
			strings.ReplaceAll(string(r.Result), " ", "_")).Inc()
		if r.Result == driver.DiedAgain && e.RedriveOf != 0 {
			m.redrives.WithLabelValues("failed").Inc()
		}
	}
}

// Changed implements dlq.Observer.
func (m *Metrics) Changed(c driver.Change, results []driver.Result) {
	done := 0.
	for i := range results {
		if results[i].Err != nil {
			continue
		}
		done++
		if e := &results[i].Entry; e.Status == dlq.Resolved {
			by := "operator"
			if c.Action == driver.ActionSucceed {
				by = "redrive"
			}
			took := max(0, e.ResolvedAt.Sub(e.CreatedAt).Seconds()) // the times may be of two clocks
			m.resolution.WithLabelValues(by).Observe(took)
			if m.legacyResolution != nil {
				m.legacyResolution.Observe(took)
			}
		}
	}
	if done == 0 {
		return
	}
	m.changes.WithLabelValues(string(c.Action)).Add(done)
	switch c.Action {
	case driver.ActionPublished:
		m.redrives.WithLabelValues("published").Add(done)
	case driver.ActionRelease:
		m.redrives.WithLabelValues("refused").Add(done)
	case driver.ActionSucceed:
		m.redrives.WithLabelValues("succeeded").Add(done)
	default:
	}
}

// Stepped implements redrive.Observer.
func (m *Metrics) Stepped(s redrive.Step) {
	m.redrives.WithLabelValues("published").Add(float64(len(s.Published)))
	m.redrives.WithLabelValues("refused").Add(float64(len(s.Released)))
	if s.ClosePublished {
		m.redrives.WithLabelValues("succeeded").Add(float64(len(s.Published)))
	}
}

// Failed implements dlq.Observer.
func (m *Metrics) Failed(op string, _ error) { m.storeErrors.WithLabelValues(op).Inc() }

// bounded limits the values of a label that come from messages.
type bounded struct {
	limit int

	mu    sync.Mutex
	known map[string]struct{}
}

func (b *bounded) bound(value string) string {
	value = label(value)
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.known[value]; ok {
		return value
	}
	if len(b.known) >= b.limit {
		return Other
	}
	b.known[value] = struct{}{}
	return value
}

// label makes a text suitable for a label: valid and short.
func label(text string) string {
	const most = 128
	if len(text) > most {
		text = text[:most]
	}
	return strings.ToValidUTF8(text, "\ufffd")
}
