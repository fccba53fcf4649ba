package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/redrive"
)

const (
	// watchEvery is how often the store is polled for a watched run.
	watchEvery = 500 * time.Millisecond
	// keepAlive is how often a stream sends something when nothing happens: proxies close silent connections.
	keepAlive = 15 * time.Second
)

func (a *API) streamRoutes() {
	r := route{
		ID: "watch-run", Method: http.MethodGet, Path: "/runs/{id}/events", Tag: "runs", Role: access.Viewer, Slow: true,
		Sends:   "text/event-stream",
		Summary: "Watch a run: a server-sent event now and whenever something has changed",
		Description: "Events are named progress, and their data is the run as GET /runs/{id} gives it. The stream ends " +
			"with an event named end when nothing more will come, and without one when the server shuts down: connect again.",
	}
	register(a, r, a.watch)
}

func (a *API) watch(ctx context.Context, in *RunID) (*huma.StreamResponse, error) {
	if _, err := a.cfg.Runner.Run(ctx, in.ID); err != nil {
		return nil, err
	}
	who := access.From(ctx)
	if full := a.streams.Open(&who); full != "" {
		return nil, huma.ErrorWithHeaders(huma.NewError(http.StatusServiceUnavailable,
			fmt.Sprintf("%s: poll GET %s/runs/%s instead", full, a.path, in.ID)), http.Header{"Retry-After": {"30"}})
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) { //nolint:contextcheck // huma's context has ours
		defer a.streams.Close(&who)
		a.stream(ctx, in.ID)
	}}, nil
}

// stream sends events until the run is done, the client disconnects, or the server shuts down.
func (a *API) stream(hc huma.Context, id string) {
	ctx, cancel := context.WithCancel(hc.Context())
	defer cancel()
	runs := make(chan *redrive.Run)
	go func() {
		defer close(runs)
		_, err := operations.Guarded(func() (struct{}, error) { return struct{}{}, a.follow(ctx, id, runs) })
		if err != nil && ctx.Err() == nil && !errors.Is(err, dlq.ErrNotFound) {
			a.cfg.Logger.WarnContext(ctx, "progress stream ended", "run", id, "error", err)
		}
	}()
	hc.SetHeader("Content-Type", "text/event-stream")
	hc.SetHeader("X-Accel-Buffering", "no")
	events := eventWriter{hc: hc}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	var last *redrive.Run
	for {
		var err error
		select {
		case run, more := <-runs:
			if !more {
				if last != nil && last.State.Ended() {
					_ = events.send("end", a.shown(ctx, last)) // the last event; no reader is left for the error
				}
				return
			}
			last = run
			err = events.send("progress", a.shown(ctx, run))
		case <-alive.C:
			err = events.write(": still here\n\n")
		case <-a.closing:
			return
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// follow passes on every change of a run.
func (a *API) follow(ctx context.Context, id string, runs chan<- *redrive.Run) error {
	for run, err := range a.cfg.Runner.WatchRun(ctx, id, watchEvery) {
		if err != nil {
			return err
		}
		select {
		case runs <- run:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// eventWriter writes server-sent events.
type eventWriter struct{ hc huma.Context }

func (e eventWriter) send(name string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.write("event: " + name + "\ndata: " + string(text) + "\n\n")
}

func (e eventWriter) write(text string) error {
	out, ok := e.hc.BodyWriter().(http.ResponseWriter)
	if !ok {
		return http.ErrNotSupported
	}
	if _, err := out.Write([]byte(text)); err != nil {
		return err
	}
	return http.NewResponseController(out).Flush()
}
