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

// acquirer simulates a card acquirer's HTTP service, as unreliable as a real one: the token of a payment determines how
// it behaves, like the test tokens of payment services. It runs in this process, because net/http would be a seventh of
// what a first run of the example compiles.
//
//	tok_visa, tok_pix    charged
//	tok_timeout_K        answers too late K times, then charges
//	tok_acquirer_down    503, until the acquirer is back
//	tok_rate_limited     429 with Retry-After once, then charges
//	tok_declined         402: the bank said no
type acquirer struct {
	back bool // the outage of tok_acquirer_down has ended

	mu    sync.Mutex
	calls map[string]int // by order
}

func newAcquirer(back bool) *acquirer { return &acquirer{back: back, calls: map[string]int{}} }

// answer is the service's side: it returns a status code and headers, or waits until the caller times out.
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

// charge is the shop's side: it charges the card, or returns an error whose HTTP status shows whether a retry is
// useful.
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
