package dashboard

import (
	"context"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
)

// jobs are changes of many entries that take longer than a person waits for a page. They belong to this process: an
// interrupted one has done a part, and can safely be repeated.
type jobs struct {
	mu  sync.Mutex
	all map[string]*job
}

// job is a change of many entries.
type job struct {
	ID, Title, Who, Back string
	Started              time.Time

	done chan struct{}
	// Written before done is closed.
	Said string
	Err  error
}

// Running reports whether the job has not ended.
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
	// maxJobs is how many are kept before those that ended are forgotten, unless they began a moment ago.
	maxJobs = 100
)

func (js *jobs) add(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	if len(js.all) >= maxJobs {
		maps.DeleteFunc(js.all, func(_ string, old *job) bool {
			return !old.Running() && time.Since(old.Started) > time.Minute
		})
	}
	js.all[j.ID] = j
}

func (js *jobs) get(id string) *job {
	js.mu.Lock()
	defer js.mu.Unlock()
	return js.all[id]
}

// inBackground starts work, which does not end with the request, and responds with its result, or with a page that
// watches it when it takes long.
func (r *request) inBackground(title, back string, work func(context.Context) (string, error)) error {
	j := &job{
		ID: uuid.NewString(), Title: title, Who: r.who.Name, Back: back, Started: time.Now(), done: make(chan struct{}),
	}
	r.jobs.add(j)
	ctx := context.WithoutCancel(r.Context())
	go func() {
		defer close(j.done)
		j.Said, j.Err = operations.Guarded(func() (string, error) { return work(ctx) })
		r.forget()
		if j.Err != nil {
			r.cfg.Logger.WarnContext(ctx, "dashboard: a change of many entries failed", "title", title, "error", j.Err)
		}
	}()
	select {
	case <-j.done:
		if j.Err != nil {
			return j.fault(r.Context())
		}
		return r.redirect(back, j.Said)
	case <-time.After(patience):
		return r.redirect("/jobs/"+j.ID, "")
	}
}

// fault reports how far the job came before it failed.
func (j *job) fault(ctx context.Context) error {
	f := faultOf(ctx, j.Err)
	if j.Said == "" || f.Status < http.StatusInternalServerError {
		return j.Err // nothing was done, and the error explains why
	}
	f = newFault(f.Status, "It was not finished",
		"Before it failed: "+j.Said+" It is safe to repeat: completed changes are kept.", j.Err)
	f.reason, f.back, f.backLabel = j.Err.Error(), j.Back, "Continue"
	return f
}

// job is the page that watches a job.
func (r *request) job() error {
	j := r.jobs.get(r.PathValue("id"))
	if j == nil {
		return newFault(http.StatusNotFound, "There is no such job",
			"The server may have been restarted. It is safe to repeat: completed changes are kept.", dlq.ErrNotFound)
	}
	return r.page("job", view{Title: j.Title, Nav: "entries", Live: j.Running(), Every: 1, Data: j})
}
