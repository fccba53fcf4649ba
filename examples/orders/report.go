package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
)

// report prints the ledger, the failures, and the next steps. It reports whether the ledger balances and the store has
// exactly the dead letters in it.
func (sh *shop) report(ctx context.Context, w io.Writer, took time.Duration, s settings) bool {
	_, _ = fmt.Fprintf(w, "\nLedger after %s, %d retries:\n\n", took.Round(10*time.Millisecond), sh.ledger.Retries())
	balanced := sh.ledger.Balance(w)
	if s.redrive {
		_, _ = fmt.Fprintln(w, "\nThe entries of the redriven orders that were processed are RESOLVED.")
		return balanced
	}

	entries, err := demo.Entries(ctx, sh.letters, dlq.Filter{CorrelationID: sh.run}) // of this run
	if err != nil {
		_, _ = fmt.Fprintln(w, "\norders:", err)
		return false
	}
	printCauses(w, entries)
	stored := len(entries)
	inLedger := sh.ledger.Counts(consumerCharge).Dead + sh.ledger.Counts(consumerLoyalty).Dead
	if stored != inLedger {
		_, _ = fmt.Fprintf(w, "\nDOES NOT BALANCE: %d dead letters in the store, %d in the ledger\n", stored, inLedger)
		balanced = false
	}
	_, _ = fmt.Fprintf(w, "\nThe %d dead letters are in %s, their payloads byte for byte.\n", stored, demo.Place(s.DLQURL))
	_, _ = fmt.Fprintf(w, "Look at them with the command:\n\n    go run ./cmd/redrive dlq list --store %s\n\n",
		storeFlag(s.DLQURL))
	_, _ = fmt.Fprintf(w, "When the acquirer is back, send the orders that gave up on it once more:\n\n    go run "+
		"./examples/orders -redrive\n\n")
	return balanced
}

// storeFlag names the store on a command line without its password.
func storeFlag(dlqURL string) string {
	if path, ok := strings.CutPrefix(dlqURL, "sqlite:"); ok {
		return strings.TrimPrefix(path, "//")
	}
	return `"$DLQ_URL"`
}

type cause struct {
	consumer string
	reason   envelope.Reason
	code     string
	text     string
}

// printCauses counts dead letters by cause.
func printCauses(w io.Writer, entries []dlq.Entry) {
	causes := map[cause]int{}
	for i := range entries {
		e := &entries[i]
		causes[cause{e.Handler, e.Reason, e.ErrorCode, e.Cause}]++
	}
	_, _ = fmt.Fprint(w, "\nDead letters by cause:\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "count\tconsumer\treason\tcode\tcause")
	order := slices.SortedFunc(maps.Keys(causes), func(a, b cause) int {
		return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a.text, b.text))
	})
	for _, c := range order {
		_, _ = fmt.Fprintf(table, "%5d\t%s\t%s\t%s\t%s\n", causes[c], c.consumer, c.reason, c.code, firstLine(c.text))
	}
	_ = table.Flush()
}

const width = 90 // of a cause, in runes

func firstLine(s string) string {
	for i, r := range []rune(s) {
		if r == '\n' || i == width {
			return string([]rune(s)[:i]) + " ..."
		}
	}
	return s
}
