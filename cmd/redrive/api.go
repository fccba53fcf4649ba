package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// api is the REST API, through which commands read and change entries and runs: a server's, or that of a store which
// this process has opened.
type api struct {
	*client.Client

	runner *redrive.Runner // of the store; nil for a server, which works on runs itself
}

// manager is the API for everything but redriving: a server's if one is given, otherwise the store's.
func (a *app) manager(ctx context.Context) (*api, error) {
	return a.connect(ctx, func(*dlq.Letters) (dlq.Redriver, error) { return nil, nil })
}

// connect is the API of a server if one is given, otherwise that of the store, with a redriver for it.
func (a *app) connect(ctx context.Context, redriver func(*dlq.Letters) (dlq.Redriver, error)) (*api, error) {
	if p, err := a.profile(); err != nil || p != nil {
		return connected(p, err)
	}
	letters, err := a.openExisting(ctx)
	if err != nil {
		return nil, err
	}
	r, err := redriver(letters)
	if err != nil {
		return nil, err
	}
	return a.local(letters, r)
}

func (a *app) managed(do func(ctx context.Context, m *api, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		m, err := a.manager(cmd.Context())
		if err != nil {
			return err
		}
		return do(cmd.Context(), m, args)
	}
}

// redriver is the API to redrive with: a server's if one is given, otherwise that of the store and the brokers.
func (a *app) redriver(ctx context.Context) (*api, error) {
	return a.connect(ctx, func(letters *dlq.Letters) (dlq.Redriver, error) {
		if len(a.cfg.Brokers) == 0 {
			return nil, usagef("no broker to redrive through: give --broker URL, or --config FILE with brokers, or set " +
				"REDRIVE_BROKER")
		}
		opened, err := a.lateBrokers(ctx)
		if err != nil {
			return nil, err
		}
		return newRouter(a.cfg, letters, opened, a.logger())
	})
}

// looker is the API for a preview: brokers that answer in time report whether a consumer reads the destinations.
func (a *app) looker(ctx context.Context) (*api, error) {
	m, err := a.manager(ctx)
	if err != nil || m.runner == nil || len(a.cfg.Brokers) == 0 || a.checkBrokers() != nil {
		return m, err
	}
	return a.redriver(ctx)
}

// connected is the API of a profile's server.
func connected(p *profile, err error) (*api, error) {
	if err != nil {
		return nil, err
	}
	web, err := p.client()
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Config{Server: p.Server, Token: p.Token, User: p.User, Password: p.Password, HTTP: web})
	return &api{Client: c}, err
}

// local is the API of an open store, served in this process for its user, who may do everything, without the limits
// that a server has for its callers. With a nil redriver it does everything but redrive.
func (a *app) local(letters *dlq.Letters, redriver dlq.Redriver) (*api, error) {
	manager, runner, err := a.workers(letters, redriver)
	if err != nil {
		return nil, err
	}
	const unlimited = math.MaxInt64 / 2
	handler, err := dlqhttp.New(dlqhttp.Config{
		Manager: manager, Runner: runner, Logger: a.logger(), ShowFaults: true, Rate: a.cfg.Redrive.Rate,
		Retention: a.cfg.Retention,
		Auth: []dlqhttp.Authenticator{dlqhttp.AuthenticatorFunc(func(*http.Request) (dlqhttp.Principal, error) {
			return dlqhttp.Principal{Name: a.by().Actor, Role: dlqhttp.Admin}, nil
		})},
		Limits: dlqhttp.Limits{Rate: -1, Body: unlimited, Import: unlimited, Timeout: unlimited},
	})
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Config{
		Server: "http://localhost", HTTP: &http.Client{Transport: inProcess{handler}}, Tries: 1,
	})
	return &api{Client: c, runner: runner}, err
}

// workers work on a store with the configuration's redrive settings.
func (a *app) workers(letters *dlq.Letters, redriver dlq.Redriver) (*dlq.Manager, *redrive.Runner, error) {
	r := &a.cfg.Redrive
	manager, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: redriver, Logger: a.logger(), PublishTimeout: r.PublishTimeout,
		OutcomeTimeout: r.OutcomeTimeout, Approval: r.Approval(), JQ: a.jq,
	})
	if err != nil {
		return nil, nil, err
	}
	runner, err := redrive.NewRunner(manager, redrive.Config{Lease: r.RunLease})
	return manager, runner, err
}

// count counts what a filter selects. A URL holds only so many ids.
func (m *api) count(ctx context.Context, f wire.Filter) (int64, error) {
	if len(f.IDs) <= maxIDs {
		return m.CountEntries(ctx, f, 0)
	}
	first, rest := f, f
	first.IDs, rest.IDs = f.IDs[:maxIDs], f.IDs[maxIDs:]
	n, err := m.CountEntries(ctx, first, 0)
	if err != nil {
		return 0, err
	}
	more, err := m.count(ctx, rest)
	return n + more, err
}

// maxIDs is how many ids a request may have in its URL, maxBodyIDs in its body.
const (
	maxIDs     = 1000
	maxBodyIDs = 10_000
)

// How often a run is polled: a stream would need a connection that no proxy cuts.
const watchLocal, watchServer = 200 * time.Millisecond, 500 * time.Millisecond

// statusOf is the HTTP status of an error of the API, otherwise 0. A 404 of another server does not mean that no such
// entry exists.
func statusOf(err error) int {
	refused, ok := errors.AsType[*client.Error](err)
	if !ok || refused.Status == http.StatusNotFound && !refused.Ours() {
		return 0
	}
	return refused.Status
}

// inProcess is an http.RoundTripper that calls a handler of this process. Responses are streamed. The
// handler of a cancelled request returns before its caller does, so that none outlives the command.
type inProcess struct{ handler http.Handler }

// RoundTrip calls the handler.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	served := r.Clone(ctx)
	if served.Body == nil {
		served.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &pipedResponse{header: http.Header{}, body: writer, begun: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if recover() != nil { // http.ErrAbortHandler: the response is not complete; the handler recovers the rest
				w.WriteHeader(http.StatusInternalServerError)
				_ = writer.CloseWithError(io.ErrUnexpectedEOF) // never fails
				return
			}
			w.WriteHeader(http.StatusOK)
			_ = writer.Close() // never fails
		}()
		t.handler.ServeHTTP(w, served)
	}()
	<-w.begun
	body := &pipedBody{reader, cancel, ended}
	if err := r.Context().Err(); err != nil && w.status >= http.StatusBadRequest {
		_ = body.Close() // never fails
		return nil, err
	}
	return &http.Response{
		StatusCode: w.status, Status: http.StatusText(w.status), Header: w.sent, Body: body, ContentLength: -1, Request: r,
		ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// pipedResponse writes a response to a pipe.
type pipedResponse struct {
	header, sent http.Header
	body         *io.PipeWriter
	status       int
	once         sync.Once
	begun        chan struct{} // closed when status and sent are set
}

// Header is the response's header until it is sent.
func (w *pipedResponse) Header() http.Header { return w.header }

// WriteHeader begins the response.
func (w *pipedResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// Write writes a part of the body.
func (w *pipedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// pipedBody ends the handler when the body is not read any further.
type pipedBody struct {
	*io.PipeReader

	cancel context.CancelFunc
	ended  <-chan struct{} // closed when the handler has returned
}

// Close ends the handler and waits for it.
func (b *pipedBody) Close() error {
	b.cancel()
	err := b.PipeReader.Close()
	<-b.ended
	return err
}
