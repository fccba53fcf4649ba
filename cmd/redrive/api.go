package main

import (
	"context"
	"errors"
	"iter"
	"math"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/wait"
)

// api is the REST API, through which commands read and change entries and runs: a server's, or that of a store which
// this process has opened.
type api struct {
	*client.Client

	runner *redrive.Runner // of the store; nil for a server, which works on runs itself
}

// manager is the API for everything but redriving: a server's if one is given, otherwise the store's.
func (a *app) manager(ctx context.Context) (*api, error) {
	if p, err := a.profile(); err != nil || p != nil {
		return connected(p, err)
	}
	letters, err := a.openExisting(ctx)
	if err != nil {
		return nil, err
	}
	return a.local(letters, nil)
}

// managed is a command that begins with the manager.
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
	if p, err := a.profile(); err != nil || p != nil {
		return connected(p, err)
	}
	letters, err := a.openExisting(ctx)
	if err != nil {
		return nil, err
	}
	if len(a.cfg.Brokers) == 0 {
		return nil, usagef("no broker to redrive through: give --broker URL, or --config FILE with brokers, or set " +
			"REDRIVE_BROKER")
	}
	opened, err := a.openBrokers(ctx)
	if err != nil {
		return nil, err
	}
	router, err := newRouter(a.cfg, letters, opened, a.logger())
	if err != nil {
		return nil, err
	}
	return a.local(letters, router)
}

// openingTime is how long a dry run waits for brokers, which it does not need.
const openingTime = 2 * time.Second

// looker is the API for a dry run: with the brokers, if all of them open, it reports whether a consumer reads the
// destinations.
func (a *app) looker(ctx context.Context) (*api, error) {
	m, err := a.manager(ctx)
	if err != nil || m.runner == nil || len(a.cfg.Brokers) == 0 {
		return m, err
	}
	opening, cancel := context.WithTimeout(ctx, openingTime)
	defer cancel()
	if r, err := a.redriver(opening); err == nil {
		return r, nil
	}
	return m, nil
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
		Manager: manager, Runner: runner, Logger: a.logger(), ShowFaults: true,
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
	r, log := &a.cfg.Redrive, a.logger()
	manager, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: redriver, Logger: log, PublishTimeout: r.PublishTimeout,
		OutcomeTimeout: r.OutcomeTimeout, Approval: r.Approval(), JQ: a.jq,
	})
	if err != nil {
		return nil, nil, err
	}
	runner, err := redrive.NewRunner(redrive.Config{
		Store: letters.Store(), Redriver: redriver, Logger: log, PublishTimeout: r.PublishTimeout,
		OutcomeTimeout: r.OutcomeTimeout, Lease: r.RunLease, Approval: r.Approval(), JQ: a.jq,
	})
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
const (
	watchLocal  = 200 * time.Millisecond
	watchServer = 500 * time.Millisecond
)

// watch reads a run again and again until it has ended.
func (m *api) watch(ctx context.Context, id string) iter.Seq2[*wire.Run, error] {
	every := watchServer
	if m.runner != nil {
		every = watchLocal
	}
	return func(yield func(*wire.Run, error) bool) {
		for {
			run, err := m.GetRun(ctx, id)
			if !yield(run, err) || err != nil || run.State.Ended() && run.Counts.Open() == 0 {
				return
			}
			if wait.For(ctx, every) != nil {
				yield(nil, ctx.Err())
				return
			}
		}
	}
}

// statusOf is the HTTP status of an error of the API, otherwise 0. A 404 of another server does not mean that no such
// entry exists.
func statusOf(err error) int {
	refused, ok := errors.AsType[*client.Error](err)
	if !ok || refused.Status == http.StatusNotFound && !refused.Ours() {
		return 0
	}
	return refused.Status
}
