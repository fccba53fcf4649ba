package dashboard

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/driver"
)

// The kinds of waiting; other kinds are counted as ready. Parked messages wait behind a retry, and count with it.
const (
	kindDelayed, kindRetry, kindParked, kindDeadLetter = "delayed", "retry", "parked", "dead_letter"
)

const (
	// reportedWithin is how long the report of an ended process is shown, silentAfter when its silence is.
	reportedWithin = 10 * time.Minute
	silentAfter    = 20 * time.Second
	liveEvery      = 2
)

// liveQueue is a row: the broker's numbers for a queue, and what the services do with it.
type liveQueue struct {
	Topic, Consumer, Handler string
	Handling                 int
	Since                    time.Time
	// Waiting are retries that services have scheduled, Next when the first is due.
	Waiting int64
	Next    time.Time
	Due     []driver.DueCount
	// Counted means that the broker counts; then Ready, Delayed, Retry and Dead are its numbers.
	Counted                     bool
	Ready, Delayed, Retry, Dead int64
}

// liveService is a service with the sums of its processes.
type liveService struct {
	driver.Service

	Handling   int
	Waiting    int64
	CanPause   bool
	Pausing    int // processes that have not yet paused, or resumed
	Silent     int // processes that have not reported for some time
	LastReport time.Time
	Problems   []string
}

// liveCircuit is a circuit that is not closed, and its service.
type liveCircuit struct {
	driver.Circuit

	Service string
}

// liveData is what the page shows.
type liveData struct {
	Queues   []liveQueue
	Services []liveService
	Circuits []liveCircuit
	// Handling, Waiting and Ready are the sums; Paused are services.
	Handling, Paused      int
	Waiting, Ready        int64
	Problem               string // why the brokers did not count
	NoDepths, NoReporting bool
}

// nowData is read once for all viewers.
type nowData struct {
	depths   []operations.Depth
	problem  string
	services []driver.Service
	none     bool
	at       time.Time
}

func (d *dashboard) readLive(ctx context.Context) (*nowData, error) {
	n := &nowData{at: d.cfg.Manager.Now(ctx)}
	var err error
	n.services, err = d.cfg.Manager.Services(ctx, n.at.Add(-reportedWithin))
	if errors.Is(err, dlq.ErrNoServices) {
		n.none, err = true, nil
	}
	if err != nil || d.cfg.Depths == nil {
		return n, err
	}
	counting, cancel := context.WithTimeout(ctx, operations.HealthTimeout)
	defer cancel()
	if n.depths, err = d.cfg.Depths(counting); err != nil {
		n.problem = err.Error() // the numbers of the others are still there
	}
	return n, nil
}

func (r *request) live() error {
	n, at, err := cached(r.Context(), r.runsCache, "live", r.readLive)
	if err != nil {
		return err
	}
	data := liveOf(n, r.sees.Text)
	data.NoDepths, data.Problem = r.cfg.Depths == nil, r.sees.Text(n.problem)
	return r.page("live", view{Title: "Live", Nav: "live", Live: true, Every: liveEvery, At: at, Data: data})
}

// liveOf sums up the reports; shown is the visible part of their texts, some of which come from messages.
func liveOf(n *nowData, shown func(string) string) *liveData {
	data := &liveData{NoReporting: n.none}
	rows := map[[2]string]*liveQueue{}
	row := func(topic, consumer string) *liveQueue {
		k := [2]string{shown(topic), shown(consumer)}
		if rows[k] == nil {
			rows[k] = &liveQueue{Topic: k[0], Consumer: k[1]}
		}
		return rows[k]
	}
	for i := range n.depths {
		d := &n.depths[i]
		q := row(d.Topic, d.Group)
		q.Counted = true
		switch d.Kind {
		case kindDelayed:
			q.Delayed += d.Messages
		case kindRetry, kindParked:
			q.Retry += d.Messages
		case kindDeadLetter:
			q.Dead += d.Messages
		default:
			q.Ready += d.Messages
			data.Ready += d.Messages
		}
	}
	for i := range n.services {
		s := serviceOf(&n.services[i], n.at)
		for _, p := range s.Processes {
			if n.at.Sub(p.At) > silentAfter {
				continue // its report is obsolete
			}
			for j := range p.Queues {
				reported := p.Queues[j] // a copy: the cache has the original
				reported.Handler = shown(reported.Handler)
				row(reported.Topic, reported.Consumer).add(&reported)
			}
			for _, c := range p.Circuits {
				c.Key = shown(c.Key)
				data.Circuits = append(data.Circuits, liveCircuit{c, s.Name})
			}
		}
		data.add(&s, shown)
	}
	for _, q := range rows {
		data.Queues = append(data.Queues, *q)
	}
	slices.SortFunc(data.Queues, func(a, b liveQueue) int {
		return cmp.Or(cmp.Compare(b.busy(), a.busy()), strings.Compare(a.Topic, b.Topic),
			strings.Compare(a.Consumer, b.Consumer))
	})
	return data
}

// add adds a service, whose texts it changes to what may be shown.
func (l *liveData) add(s *liveService, shown func(string) string) {
	s.Pause.By = shown(s.Pause.By)
	for i := range s.Problems {
		s.Problems[i] = shown(s.Problems[i])
	}
	l.Handling, l.Waiting = l.Handling+s.Handling, l.Waiting+s.Waiting
	if s.Pause.Paused {
		l.Paused++
	}
	l.Services = append(l.Services, *s)
}

// serviceOf sums up the processes that still report.
func serviceOf(s *driver.Service, now time.Time) liveService {
	l := liveService{Service: *s}
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.At.After(l.LastReport) {
			l.LastReport = p.At
		}
		l.CanPause = l.CanPause || p.CanPause
		if now.Sub(p.At) > silentAfter {
			l.Silent++
			continue
		}
		if p.CanPause && p.Paused != s.Pause.Paused {
			l.Pausing++
		}
		if p.Problem != "" {
			l.Problems = append(l.Problems, p.Problem)
		}
		for j := range p.Queues {
			l.Handling += p.Queues[j].Handling
			l.Waiting += p.Queues[j].Waiting
		}
	}
	return l
}

// busy ranks queues: active ones come first.
func (q *liveQueue) busy() int64 {
	return int64(q.Handling) + q.Waiting + q.Ready + q.Delayed + q.Retry
}

func (q *liveQueue) add(from *driver.ServiceQueue) {
	q.Handling += from.Handling
	q.Waiting += from.Waiting
	if q.Handler == "" {
		q.Handler = from.Handler
	} else if from.Handler != q.Handler {
		q.Handler = "several handlers"
	}
	if !from.Since.IsZero() && (q.Since.IsZero() || from.Since.Before(q.Since)) {
		q.Since = from.Since
	}
	if !from.Next.IsZero() && (q.Next.IsZero() || from.Next.Before(q.Next)) {
		q.Next = from.Next
	}
	for _, due := range from.Due {
		at := slices.IndexFunc(q.Due, func(d driver.DueCount) bool { return d.Within == due.Within })
		if at < 0 {
			q.Due = append(q.Due, due)
			continue
		}
		q.Due[at].Messages += due.Messages
	}
	slices.SortFunc(q.Due, func(a, b driver.DueCount) int { return cmp.Compare(latest(a), latest(b)) })
}

// DueText is how many are due within which time.
func (q *liveQueue) DueText() string {
	parts := make([]string, 0, len(q.Due))
	for _, due := range q.Due {
		within := "later"
		if due.Within > 0 {
			within = "within " + age(due.Within)
		}
		parts = append(parts, number(due.Messages)+" "+within)
	}
	return strings.Join(parts, ", ")
}

// changeIntake pauses or resumes a service's intake.
func (r *request) changeIntake() error {
	service, do := r.PostForm.Get("service"), r.PostForm.Get("do")
	said, known := map[string]string{
		"pause": "The intake of " + service + " is paused. Its processes finish what they handle, and receive nothing after " +
			"their next report.",
		"resume": "The intake of " + service + " is resumed. Its processes receive again after their next report.",
	}[do]
	if !known {
		return invalid("action %q", do)
	}
	if err := r.cfg.Manager.PauseIntake(r.Context(), service, do == "pause", r.by()); err != nil {
		return err
	}
	r.forget()
	return r.redirect("/live", said)
}

// latest is a count's limit for sorting: one without a limit comes last.
func latest(c driver.DueCount) time.Duration {
	if c.Within == 0 {
		return math.MaxInt64
	}
	return c.Within
}
