package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// jobs are changes of many entries that take longer than a person waits for a page. They belong to this process: an
// interrupted one has done a part, and can safely be repeated.
type jobs struct {
	mu  sync.Mutex
	all map[string]*job
}

// job is one of them.
type job struct {
	ID, Title, Who, Back string
	Started              time.Time

	done chan struct{}
	// Written before done is closed.
	Said  string
	Err   error
	Ended time.Time
}

// Running reports whether it is still running.
func (j *job) Running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

const (
	// patience is how long a request waits for its job before it shows a page that watches it.
	patience = 2 * time.Second
	maxJobs  = 100
)

func newJobs() *jobs { return &jobs{all: map[string]*job{}} }

// start runs work in the background. It does not end with the request.
func (js *jobs) start(ctx context.Context, title, back string, work func(context.Context) (string, error)) *job {
	j := &job{
		ID: uuid.NewString(), Title: title, Who: access.From(ctx).Name, Back: back, Started: time.Now(),
		done: make(chan struct{}),
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.all) >= maxJobs {
		oldest := slices.SortedFunc(mapKeys(js.all),
			func(a, b string) int { return cmp.Compare(js.all[a].Started.UnixNano(), js.all[b].Started.UnixNano()) })
		for _, id := range oldest {
			if !js.all[id].Running() {
				delete(js.all, id)
				break
			}
		}
	}
	js.all[j.ID] = j
	go func() {
		defer close(j.done)
		j.Said, j.Err = work(context.WithoutCancel(ctx))
		j.Ended = time.Now()
	}()
	return j
}

func (js *jobs) get(id string) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.all[id]
}

// inBackground starts work and responds with its result, or with a page that watches it when it takes long.
func (d *dashboard) inBackground(w http.ResponseWriter, r *http.Request, title, back string,
	work func(context.Context) (string, error),
) error {
	j := d.jobs.start(r.Context(), title, back, func(ctx context.Context) (string, error) {
		said, err := work(ctx)
		d.forget()
		if err != nil {
			d.cfg.Logger.WarnContext(ctx, "dashboard: a change of many entries failed", "title", title, "error", err)
		}
		return said, err
	})
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-j.done:
		if j.Err != nil {
			return j.fault()
		}
		d.see(w, r, back, j.Said)
	case <-timer.C:
		d.see(w, r, "/jobs/"+j.ID, "")
	}
	return nil
}

// fault reports how far the job came before it failed.
func (j *job) fault() error {
	f := faultOf(j.Err)
	if j.Said == "" || f.status < http.StatusInternalServerError {
		return j.Err // nothing was done, and the error explains why
	}
	return &fault{
		status: f.status, title: "It was not finished",
		detail: "Before it failed: " + j.Said + " It is safe to repeat: completed changes are kept.",
		reason: j.Err.Error(), cause: j.Err, back: j.Back, backLabel: "Continue",
	}
}

// job watches one.
func (d *dashboard) job(w http.ResponseWriter, r *http.Request) error {
	j := d.jobs.get(r.PathValue("id"))
	if j == nil {
		return newFault(http.StatusNotFound, "This server does not know it",
			"It may have been restarted. It is safe to repeat: completed changes are kept.", dlq.ErrNotFound)
	}
	return d.page(w, r, "job", view{Title: j.Title, Nav: "entries", Live: j.Running(), Every: 1, Data: j})
}
