package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/middleware"
)

// acquirerTimeout is how long a charge may take before the shop gives up on it.
const acquirerTimeout = 250 * time.Millisecond

// acquirer stands for a card acquirer's HTTP service, as unreliable as a real one: the token of a payment decides how
// it behaves, as the test tokens of payment services do. It answers in this process: net/http would be a seventh of
// what a first run of the example compiles.
//
//	tok_visa, tok_pix    charged
//	tok_timeout_K        answers too late K times, then charges
//	tok_acquirer_down    503, until the acquirer is back
//	tok_rate_limited     429 with Retry-After once, then charges
//	tok_declined         402: the bank said no
type acquirer struct {
	back bool // the outage of tok_acquirer_down is over

	mu    sync.Mutex
	calls map[string]int // by order
}

func newAcquirer(back bool) *acquirer { return &acquirer{back: back, calls: map[string]int{}} }

// answer is the service's side: a status code and headers, or the end of the caller's patience.
func (a *acquirer) answer(ctx context.Context, order, token string) (code int, header map[string][]string, err error) {
	a.mu.Lock()
	a.calls[order]++
	call := a.calls[order]
	a.mu.Unlock()

	kind, times, _ := strings.Cut(strings.TrimPrefix(token, "tok_"), "_")
	switch late, _ := strconv.Atoi(times); {
	case kind == "timeout" && call <= late:
		<-ctx.Done()
		return 0, nil, ctx.Err()
	case kind == "acquirer" && !a.back:
		return 503, nil, nil
	case kind == "rate" && call == 1:
		return 429, map[string][]string{"Retry-After": {"2"}}, nil
	case kind == "declined":
		return 402, nil, nil
	}
	return 201, nil, nil
}

// charge is the shop's side: it takes the money, or returns an error that says by its HTTP status whether another try
// is worth it.
func (a *acquirer) charge(ctx context.Context, o *Order) error {
	ctx, cancel := context.WithTimeout(ctx, acquirerTimeout)
	defer cancel()
	code, header, err := a.answer(ctx, o.ID, o.Payment.Token)
	if err == nil {
		err = middleware.HTTPStatus(code, header)
	}
	if err != nil {
		return fmt.Errorf("payment: %w", err)
	}
	return nil
}
