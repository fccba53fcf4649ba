package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/middleware"
)

// acquirerTimeout is how long a charge may take before the shop gives up on it.
const acquirerTimeout = 250 * time.Millisecond

// acquirer is a card acquirer's HTTP service on the loopback interface, as
// unreliable as a real one: the token of a payment decides how it behaves, as
// the test tokens of payment services do.
//
//	tok_visa, tok_pix    charged
//	tok_timeout_K        answers too late K times, then charges
//	tok_acquirer_down    503, until the acquirer is back
//	tok_rate_limited     429 with Retry-After once, then charges
//	tok_declined         402: the bank said no
type acquirer struct {
	server *http.Server
	url    string
	client *http.Client
	back   bool // the outage of tok_acquirer_down is over

	mu    sync.Mutex
	calls map[string]int // by order
}

func startAcquirer(ctx context.Context, back bool) (*acquirer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("orders: start the acquirer: %w", err)
	}
	a := &acquirer{
		url:    "http://" + listener.Addr().String() + "/charges",
		client: &http.Client{Timeout: acquirerTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		back:   back,
		calls:  map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", a.charges)
	a.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = a.server.Serve(listener) }() // ends with Close
	return a, nil
}

func (a *acquirer) Close() error {
	a.client.CloseIdleConnections()
	return a.server.Close()
}

// charges is the service's side.
func (a *acquirer) charges(w http.ResponseWriter, r *http.Request) {
	var charge struct{ Order, Token string }
	if err := json.NewDecoder(r.Body).Decode(&charge); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.calls[charge.Order]++
	call := a.calls[charge.Order]
	a.mu.Unlock()

	token, times, _ := strings.Cut(strings.TrimPrefix(charge.Token, "tok_"), "_")
	switch late, _ := strconv.Atoi(times); {
	case token == "timeout" && call <= late:
		<-r.Context().Done() // the client hangs up first
	case token == "acquirer" && !a.back:
		http.Error(w, "acquirer unreachable", http.StatusServiceUnavailable)
	case token == "rate" && call == 1:
		w.Header().Set("Retry-After", "2")
		http.Error(w, "too many charges", http.StatusTooManyRequests)
	case token == "declined":
		http.Error(w, "card declined", http.StatusPaymentRequired)
	default:
		w.WriteHeader(http.StatusCreated)
	}
}

// charge is the shop's side: it takes the money, or returns an error that
// says by its HTTP status whether another try is worth it.
func (a *acquirer) charge(ctx context.Context, o *Order) error {
	body, err := json.Marshal(map[string]any{"order": o.ID, "token": o.Payment.Token, "cents": o.TotalCents})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("payment: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := middleware.HTTPStatus(response.StatusCode, response.Header); err != nil {
		return fmt.Errorf("payment: %w", err)
	}
	return nil
}
