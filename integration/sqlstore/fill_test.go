package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// month is the time that the filled tables span, up to now.
const month = 30 * 24 * time.Hour

// rowCount is how many rows the tests of plans and the benchmarks have: 200,000, or what REDRIVE_ROWS says.
func rowCount(t testing.TB) int {
	t.Helper()
	text := os.Getenv("REDRIVE_ROWS")
	if text == "" {
		return 200_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "REDRIVE_ROWS")
	return n
}

// causes are the errors of the filled tables; the first is every third of them, and some have values that differ in each.
var causes = []func(n int) (class, text string){
	func(int) (string, string) { return "*esocial.ValidationError", "Falha na validação: CPF inválido" },
	func(n int) (string, string) {
		return "*esocial.ValidationError", fmt.Sprintf("Falha na validação: idade %d, mínimo 16", n%16)
	},
	func(int) (string, string) { return "*esocial.ValidationError", "Falha na validação: CPF inválido" },
	func(n int) (string, string) {
		return "*net.OpError", fmt.Sprintf("dial tcp 10.0.%d.%d:5432: connect: connection refused", n>>8&255, n&255)
	},
	func(int) (string, string) { return "*json.SyntaxError", "unexpected end of JSON input" },
	func(n int) (string, string) {
		return "*esocial.DateError", fmt.Sprintf("data de demissão 2026-01-%02d antes da admissão", n%28+1)
	},
	func(n int) (string, string) { return "*url.Error", fmt.Sprintf(`Post "https://bank.test/pay/%d": timeout`, n) },
}

// letter is the n-th dead letter of the tests. It died at the given time.
func letter(n int, at time.Time, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	m := message.NewMessage(fmt.Sprintf("uuid-%d", n), fmt.Appendf(nil,
		`{"employee":{"cpf":"%011d","name":"Ana Maria da Silva","admission":"2026-01-02","salary":"1234.56"},"seq":%d,"tenant":"acme"}`, n, n))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("event-%d", n)
	m.Metadata[envelope.KeyCorrelationID] = correlation(n)
	m.Metadata["source_id"] = fmt.Sprintf("E-%d", n)
	m.Metadata["source_table"] = "employee"
	class, text := causes[n%len(causes)](n)
	topic := []string{"employee-create", "employee-update", "employee-delete"}[n%3]
	partition, offset := int32(n%8), int64(n/8) //nolint:gosec // small
	d := &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonPermanent, Err: envelope.Error{Message: text, Trace: "esocial.Validate()\n\tvalidate.go:42\nmain.handle()"},
		Class: class, Handler: "validate", Attempts: 1, At: at,
		Origin: envelope.Origin{
			Broker: "kafka", Topic: topic, Consumer: "esocial", Partition: &partition, Offset: &offset,
			Position: fmt.Sprintf("%d/%d", partition, offset),
		},
	}
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

func correlation(n int) string { return fmt.Sprintf("6f1f3a52-0000-4000-8000-%012x", n) }

// filled is the n-th of total rows, spread over the last month: the newest third waits, some were given up, the others resolved.
func filled(n, total int, end time.Time) *dlq.Entry {
	e := letter(n, end.Add(-month+month*time.Duration(n)/time.Duration(total)))
	switch {
	case n%10 == 7:
		e.Status = dlq.Discarded
	case n < total*2/3 && n%10 != 3:
		e.Status = dlq.Resolved
	}
	if e.Status != dlq.Pending {
		e.Version, e.ResolvedAt, e.ResolvedBy = 2, e.CreatedAt.Add(3*time.Hour), "ana"
		e.ChangedAt, e.ChangedBy = e.ResolvedAt, "ana"
	}
	return e
}

// fill stores total rows and tells the planner about them. It returns the time of the newest.
func fill(t testing.TB, s *sqlstore.Store, db *sql.DB, total int) time.Time {
	t.Helper()
	end := time.Now().UTC().Truncate(time.Microsecond)
	const batch = 1000
	next := make(chan int)
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for from := range next {
				letters := make([]*dlq.Entry, min(batch, total-from))
				for i := range letters {
					letters[i] = filled(from+i, total, end)
				}
				if _, err := s.Put(context.Background(), letters...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for from := 0; from < total; from += batch {
		next <- from
	}
	close(next)
	writers.Wait()
	for _, table := range []string{"dlq_entries", "dlq_bodies", "dlq_groups", "dlq_counts", "dlq_hours", "dlq_audit"} {
		_, err := db.ExecContext(t.Context(), "VACUUM ANALYZE "+table)
		require.NoError(t, err)
	}
	return end
}
