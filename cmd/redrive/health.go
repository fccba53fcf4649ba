package main

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/collector"
)

// handler answers what a load balancer or an orchestrator asks.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		report := s.health(r.Context())
		status := http.StatusOK
		if report.Status != "ok" {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, report)
	})
	return mux
}

// health is the state of each component.
type health struct {
	Status     string               `json:"status"` // ok or failing
	Components map[string]component `json:"components"`
}

type component struct {
	Status string `json:"status"`
	// Error says what is wrong. It is one of ours or a driver's, neither of which shows a password.
	Error     string `json:"error,omitempty"`
	Collected int64  `json:"collected,omitempty"`
	Held      int64  `json:"held,omitempty"`
}

const healthTimeout = 3 * time.Second

// health asks everything at once, shortly.
func (s *server) health(ctx context.Context) health {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	report := health{Status: "ok", Components: map[string]component{}}
	var (
		mu     sync.Mutex
		asking sync.WaitGroup
	)
	add := func(name string, err error, c component) {
		mu.Lock()
		defer mu.Unlock()
		c.Status = "ok"
		if err != nil {
			c.Status, c.Error, report.Status = "failing", err.Error(), "failing"
		}
		report.Components[name] = c
	}
	asking.Go(func() { add("store", s.letters.Store().Ping(ctx), component{}) })
	for name, b := range s.brokers {
		asking.Go(func() { add("broker "+name, b.Ping(ctx), component{}) })
	}
	if s.collector != nil {
		for _, source := range s.collector.Stats() {
			add("source "+source.Broker+"/"+source.Topic, sourceFault(&source), component{Collected: source.Collected, Held: source.Held})
		}
	}
	asking.Wait()
	return report
}

// sourceFault says what is wrong with a source; one that has not subscribed yet is not ready.
func sourceFault(s *collector.SourceStats) error {
	switch {
	case s.Err != "":
		return plainError(s.Err)
	case !s.Subscribed:
		return plainError("not subscribed")
	default:
		return nil
	}
}

type plainError string

func (e plainError) Error() string { return string(e) }

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client has gone; nobody is left to be told
}
