package demo_test

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/middleware"
)

// attempts reports what happens to messages of one handler.
type attempts struct {
	*demo.Ledger

	t *testing.T
}

func delivery(id string, attempt int) *middleware.Delivery {
	return &middleware.Delivery{Handler: "h", Attempt: middleware.Attempt{Number: attempt, MessageID: id}}
}

func (a attempts) start(id string, attempt int) {
	a.Started(a.t.Context(), middleware.Started{Delivery: delivery(id, attempt)})
}

func (a attempts) finish(id string, attempt int, outcome middleware.Outcome) {
	a.Finished(a.t.Context(), middleware.Finished{Delivery: delivery(id, attempt), Outcome: outcome})
}

// The ledger is only useful if it finds every fault.
func TestLedger(t *testing.T) {
	const (
		success = middleware.OutcomeSuccess
		retry   = middleware.OutcomeRetry
		dead    = middleware.OutcomeDeadLetter
	)
	for name, tc := range map[string]struct {
		events   func(a attempts)
		balanced bool
		prints   string
	}{
		"processed at once": {func(a attempts) { a.start("1", 1); a.finish("1", 1, success) }, true, "balanced"},
		"processed after a retry": {func(a attempts) {
			a.start("1", 1)
			a.finish("1", 1, retry)
			a.start("1", 2)
			a.finish("1", 2, success)
		}, true, "balanced"},
		"the retry is reported late": {func(a attempts) {
			a.start("1", 1)
			a.start("1", 2)
			a.finish("1", 1, retry)
			a.finish("1", 2, success)
		}, true, "balanced"},
		"lost in its second attempt": {func(a attempts) {
			a.start("1", 1)
			a.start("1", 2)
			a.finish("1", 1, retry)
		}, false, "1 missing"},
		"waiting": {func(a attempts) { a.start("1", 1); a.finish("1", 1, retry) }, true, "balanced"},
		"the same end twice": {func(a attempts) {
			a.start("1", 1)
			a.finish("1", 1, success)
			a.finish("1", 1, success)
		}, true, "balanced"},
		"never delivered": {func(attempts) {}, false, "1 missing"},
		"never ended":     {func(a attempts) { a.start("1", 1) }, false, "1 missing"},
		"dead and processed": {func(a attempts) {
			a.start("1", 1)
			a.finish("1", 1, dead)
			a.start("1", 2)
			a.finish("1", 2, success)
		}, false, "FAULT"},
		"of another run": {func(a attempts) {
			a.start("1", 1)
			a.finish("1", 1, success)
			a.start("2", 1)
			a.finish("2", 1, success)
		}, true, "balanced"},
	} {
		t.Run(name, func(t *testing.T) {
			l := demo.NewLedger("h")
			l.Expect("h", "1")
			tc.events(attempts{l, t})
			var out strings.Builder
			require.Equal(t, tc.balanced, l.Balance(&out), out.String())
			require.Contains(t, out.String(), tc.prints)
		})
	}
}

func TestLedger_SettlesOnceNothingIsOpen(t *testing.T) {
	l := demo.NewLedger("h")
	l.Expect("h", "1")
	a := attempts{l, t}
	a.start("1", 1)
	a.finish("1", 1, middleware.OutcomeSuccess)
	select {
	case <-l.Settled():
		t.Fatal("more may be published until Seal")
	default:
	}
	l.Seal()
	<-l.Settled()
	require.True(t, l.Balance(io.Discard))
}
