package main

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The ledger is only useful if it finds every fault.
func TestLedger(t *testing.T) {
	for name, tc := range map[string]struct {
		events   func(l *ledger)
		balanced bool
		says     string
	}{
		"processed at once": {func(l *ledger) { l.start("h", "1", 1); l.finish("h", "1", 1) }, true, "balanced"},
		"processed after retry": {func(l *ledger) {
			l.start("h", "1", 1)
			l.retry("h", "1", 1)
			l.finish("h", "1", 1)
			l.start("h", "1", 2)
			l.finish("h", "1", 2)
		}, true, "balanced"},
		"retry hook is late": {func(l *ledger) {
			l.start("h", "1", 1)
			l.start("h", "1", 2)
			l.retry("h", "1", 1)
			l.finish("h", "1", 1)
			l.finish("h", "1", 2)
		}, true, "balanced"},
		"waiting": {
			func(l *ledger) { l.start("h", "1", 1); l.retry("h", "1", 1); l.finish("h", "1", 1) }, true,
			"balanced",
		},
		"same end twice": {
			func(l *ledger) { l.start("h", "1", 1); l.finish("h", "1", 1); l.finish("h", "1", 1) }, true,
			"balanced",
		},
		"never delivered": {func(*ledger) {}, false, "1 missing"},
		"never ended":     {func(l *ledger) { l.start("h", "1", 1) }, false, "1 missing"},
		"dead and processed": {func(l *ledger) {
			l.start("h", "1", 1)
			l.end("h", "1", 1, dead)
			l.start("h", "1", 2)
			l.finish("h", "1", 2)
		}, false, "FAULT"},
		"of another run": {func(l *ledger) {
			l.start("h", "1", 1)
			l.finish("h", "1", 1)
			l.start("h", "2", 1)
			l.finish("h", "2", 1)
		}, true, "balanced"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger("h")
			l.publish("h", "1")
			tc.events(l)
			var out strings.Builder
			require.Equal(t, tc.balanced, l.balance(&out), out.String())
			require.Contains(t, out.String(), tc.says)
		})
	}
}

func TestLedger_SettlesOnceNothingIsOpen(t *testing.T) {
	l := newLedger("h")
	l.publish("h", "1")
	l.start("h", "1", 1)
	l.finish("h", "1", 1)
	select {
	case <-l.settled:
		t.Fatal("more may be published until seal")
	default:
	}
	l.seal()
	<-l.settled
	require.True(t, l.balance(io.Discard))
}
