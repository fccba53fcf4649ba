package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/middleware"
)

// Config configures a [Monitor].
type Config struct {
	// Service is the name that all processes of the service share: pausing applies to a service. Required.
	Service string
	// Store stores the reports. Required, and it must support reports: those of package sqlstore do.
	Store driver.Store
	// Process distinguishes the processes of a service. Defaults to the host's name, the process id and a few random
	// digits.
	Process string
	// Interval is the time between reports, and so how fast a pause takes effect. Defaults to 5 s.
	Interval time.Duration
	// Logger logs pauses and failed reports. Defaults to slog.Default().
	Logger *slog.Logger
}

const defaultInterval = 5 * time.Second

// Monitor observes one process. Its methods are safe for concurrent use.
type Monitor struct {
	middleware.NopObserver // of what dead letters and logs report

	cfg  Config
	gate *gate

	mu       sync.Mutex
	queues   map[queueKey]*queue
	circuits map[string]driver.Circuit
}

var _ middleware.Observer = (*Monitor)(nil)

type queueKey struct{ topic, consumer, handler string }

// queue is the state of one topic, consumer and handler.
type queue struct {
	handling map[string]time.Time // message ids, and when their handler began
	repeated int                  // messages handled at the same time as another one with their id
	due      dueTimes
}

// maxNames limits how many queues and circuits are kept, because their names come from messages.
const maxNames = 1000

// New makes a Monitor. The error reports every fault of the configuration.
func New(cfg Config) (*Monitor, error) {
	var errs []error
	if cfg.Service == "" {
		errs = append(errs, errors.New("config: Service is required"))
	}
	m := &Monitor{cfg: cfg, gate: newGate(), queues: map[queueKey]*queue{}, circuits: map[string]driver.Circuit{}}
	if cfg.Store == nil {
		errs = append(errs, errors.New("config: Store is required"))
	}
	if cfg.Interval < 0 {
		errs = append(errs, fmt.Errorf("config: Interval %s must not be negative", cfg.Interval))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("live: %w", err)
	}
	m.cfg.Interval = cmp.Or(cfg.Interval, defaultInterval)
	m.cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if m.cfg.Process == "" {
		host, _ := os.Hostname() // without a name, the process id is enough
		m.cfg.Process = host + "/" + strconv.Itoa(os.Getpid()) + "/" + uuid.NewString()[:8]
	}
	return m, nil
}

// Run reports until ctx ends, and once more after that. It returns nil.
func (m *Monitor) Run(ctx context.Context) error {
	ticker := time.NewTicker(m.cfg.Interval)
	defer ticker.Stop()
	failing := false
	for {
		err := m.beat(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			m.cfg.Logger.WarnContext(ctx, "the report to the dashboard failed; intake stays as it is", "service", m.cfg.Service,
				"error", err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_ = m.beat(last) // without it the dashboard shows an old report
			return nil
		case <-ticker.C:
		}
	}
}

// beat sends a report, and pauses or resumes intake as the response requests.
func (m *Monitor) beat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(m.cfg.Interval, time.Second))
	defer cancel()
	// The store is looked up for each report: one that did not respond when the service started is opened later.
	store, ok := driver.As[driver.ServiceStore](m.cfg.Store)
	if !ok {
		return errors.New("live: the store is not open, or keeps no reports of services")
	}
	pause, err := store.Beat(ctx, m.Report(driver.Now(ctx, store)))
	if err != nil {
		return err
	}
	if !m.gate.set(pause.Paused) {
		return nil
	}
	logger := m.cfg.Logger.With("service", m.cfg.Service, "by", pause.By)
	if pause.Paused {
		logger.InfoContext(ctx, "intake is paused by an operator: nothing more is received")
	} else {
		logger.InfoContext(ctx, "intake is resumed")
	}
	_, err = store.Beat(ctx, m.Report(driver.Now(ctx, store))) // so that the dashboard shows it at once
	return err
}

// Report is the current state of the process.
func (m *Monitor) Report(now time.Time) *driver.ServiceReport {
	r := &driver.ServiceReport{Service: m.cfg.Service, Process: m.cfg.Process, At: now.UTC().Truncate(time.Microsecond)}
	r.CanPause, r.Paused, r.Problem = m.gate.state()
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, q := range m.queues {
		row := driver.ServiceQueue{
			Topic: key.topic, Consumer: key.consumer, Handler: key.handler, Handling: len(q.handling) + q.repeated,
		}
		for _, since := range q.handling {
			if row.Since.IsZero() || since.Before(row.Since) {
				row.Since = since
			}
		}
		row.Waiting, row.Next, row.Due = q.due.counts(now)
		r.Queues = append(r.Queues, row)
	}
	for _, c := range m.circuits {
		r.Circuits = append(r.Circuits, c)
	}
	slices.SortFunc(r.Queues, func(a, b driver.ServiceQueue) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Consumer, b.Consumer), cmp.Compare(a.Handler, b.Handler))
	})
	slices.SortFunc(r.Circuits, func(a, b driver.Circuit) int { return cmp.Compare(a.Key, b.Key) })
	return r
}

// queueOf returns the state of a delivery's queue; nil beyond the limit.
func (m *Monitor) queueOf(d *middleware.Delivery) *queue {
	key := queueKey{d.Origin.Topic, d.Origin.Consumer, d.Handler}
	q := m.queues[key]
	if q == nil && len(m.queues) < maxNames {
		q = &queue{handling: map[string]time.Time{}}
		m.queues[key] = q
	}
	return q
}

// Started implements [middleware.Observer].
func (m *Monitor) Started(ctx context.Context, e middleware.Started) context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queueOf(e.Delivery); q != nil {
		if _, there := q.handling[e.Message.UUID]; there {
			q.repeated++
		} else {
			q.handling[e.Message.UUID] = time.Now().UTC().Truncate(time.Microsecond)
		}
	}
	return ctx
}

// Finished implements [middleware.Observer].
func (m *Monitor) Finished(_ context.Context, e middleware.Finished) {
	if !e.Ran {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queueOf(e.Delivery)
	switch {
	case q == nil:
	case q.repeated > 0 && q.handling[e.Message.UUID].IsZero():
		q.repeated-- // the other message has removed the id
	default:
		delete(q.handling, e.Message.UUID)
	}
}

// RetryScheduled implements [middleware.Observer].
func (m *Monitor) RetryScheduled(_ context.Context, e middleware.RetryScheduled) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queueOf(e.Delivery); q != nil {
		now := time.Now()
		q.due.add(now, now.Add(e.Decision.Delay))
	}
}

// BreakerChanged implements [middleware.Observer].
func (m *Monitor) BreakerChanged(_ context.Context, e middleware.BreakerChanged) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.To == "closed" {
		delete(m.circuits, e.Key)
	} else if _, there := m.circuits[e.Key]; there || len(m.circuits) < maxNames {
		m.circuits[e.Key] = driver.Circuit{Key: e.Key, State: e.To, Since: time.Now().UTC().Truncate(time.Microsecond)}
	}
}

// dueTimes has when retries are due. Due ones are forgotten, because the broker may deliver them to any process.
type dueTimes struct {
	times     []time.Time
	forgotten time.Time // when due ones were last forgotten
	// more counts the retries beyond maxDue; last is when the last of them is due.
	more int64
	last time.Time
}

// maxDue limits the times that a queue keeps: 24 bytes each.
const maxDue = 100_000

func (d *dueTimes) add(now, at time.Time) {
	if len(d.times) == maxDue && now.Sub(d.forgotten) >= time.Second { // without a report; it reads all of them
		d.forget(now)
	}
	if len(d.times) < maxDue {
		d.times = append(d.times, at)
		return
	}
	d.more++
	if at.After(d.last) {
		d.last = at
	}
}

func (d *dueTimes) forget(now time.Time) {
	d.forgotten = now
	d.times = slices.DeleteFunc(d.times, func(at time.Time) bool { return !at.After(now) })
	if !d.last.After(now) {
		d.more = 0
	}
}

// dueSteps are the classes of waiting retries by the time left; the last one has the rest.
var dueSteps = []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 0}

// counts returns how many wait, when the first is due, and how many are due within each step.
func (d *dueTimes) counts(now time.Time) (waiting int64, next time.Time, due []driver.DueCount) {
	d.forget(now)
	numbers := make([]int64, len(dueSteps))
	numbers[len(dueSteps)-1] = d.more
	for _, at := range d.times {
		numbers[slices.IndexFunc(dueSteps, func(step time.Duration) bool { return step == 0 || at.Sub(now) <= step })]++
	}
	for i, n := range numbers {
		if n > 0 {
			due = append(due, driver.DueCount{Within: dueSteps[i], Messages: n})
		}
	}
	if len(d.times) > 0 {
		next = slices.MinFunc(d.times, time.Time.Compare).UTC().Truncate(time.Microsecond)
	}
	return int64(len(d.times)) + d.more, next, due
}
