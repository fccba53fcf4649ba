package sqlstore_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// BenchmarkPut compares 64 callers, each waiting for its own letter to be durable, with one that stores 1,000 in one
// transaction. The two run alternately; "ratio" is callers/transaction, and the target is 0.6.
func BenchmarkPut(b *testing.B) {
	joined, _ := newFile(b, "")
	single, _ := newFile(b, "")
	const rows, callers = 1000, 64
	letters := make([]*dlq.Entry, rows)
	next := 0
	var together, alone time.Duration
	rounds := 0
	for b.Loop() {
		rounds++
		for i := range letters {
			next++
			letters[i] = entry(next, time.Now())
		}
		start := time.Now()
		var wg sync.WaitGroup
		var taken atomic.Int64
		for range callers {
			wg.Go(func() {
				for {
					i := taken.Add(1) - 1
					if i >= rows {
						return
					}
					if _, err := joined.Put(b.Context(), letters[i]); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		together += time.Since(start)
		start = time.Now()
		_, err := single.Put(b.Context(), letters...)
		require.NoError(b, err)
		alone += time.Since(start)
	}
	perSecond := func(d time.Duration) float64 { return float64(rounds*rows) / d.Seconds() }
	b.ReportMetric(perSecond(together), "callers-rows/s")
	b.ReportMetric(perSecond(alone), "transaction-rows/s")
	b.ReportMetric(alone.Seconds()/together.Seconds(), "ratio")
}

// BenchmarkRead reads at 100,000 rows. Targets: 5 ms for pages, 20 ms for statistics.
func BenchmarkRead(b *testing.B) {
	s, db := newFile(b, "?synchronous=normal")
	const rows = 100_000
	start := time.Now().Add(-30 * 24 * time.Hour)
	var ids []int64
	for n := 0; n < rows; n += 1000 {
		batch := make([]*dlq.Entry, 1000)
		for i := range batch {
			d := entry(n+i, start.Add(time.Duration(n+i)*25*time.Second))
			if (n+i)%10 == 3 {
				d.ErrorMessage = fmt.Sprintf("employee E-%d is too young", n+i)
				d.Cause, d.Fingerprint = dlq.Normalize(d.ErrorMessage), dlq.Fingerprint(d.Handler, d.ErrorClass, "", d.ErrorMessage)
			}
			batch[i] = d
		}
		receipts, err := s.Put(b.Context(), batch...)
		require.NoError(b, err)
		for _, r := range receipts[:300] {
			ids = append(ids, r.ID)
		}
	}
	for len(ids) > 0 {
		part := ids[:min(500, len(ids))]
		ids = ids[len(part):]
		_, err := s.Change(b.Context(), driver.Change{
			Action: driver.ActionResolve, IDs: part, Actor: "bench",
			At: time.Now(),
		})
		require.NoError(b, err)
	}
	pending := dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}
	deep := wire.Cursor{Order: driver.NewestFirst, At: start.Add(25 * rows / 2 * time.Second), ID: 1 << 40}.String()
	list := func(f dlq.Filter, p dlq.Page) func() (int, error) {
		return func() (int, error) {
			l, err := s.List(b.Context(), f, p)
			return len(l.Entries), err
		}
	}
	month := dlq.Filter{CauseText: "cpf", From: start.Add(15 * 24 * time.Hour), To: time.Now()}
	for _, c := range []struct {
		name string
		run  func() (int, error)
	}{
		{"first page", list(pending, dlq.Page{})},
		{"deep page", list(pending, dlq.Page{After: deep})},
		{"event id", list(dlq.Filter{EventID: "event-77777"}, dlq.Page{})},
		{"source id", list(dlq.Filter{SourceID: "E-77777"}, dlq.Page{})},
		{"rare error text", list(dlq.Filter{ErrorText: "E-77773 is"}, dlq.Page{})},
		{"CPF, last month: first page", list(month, dlq.Page{})},
		{"CPF, last month: count", func() (int, error) {
			n, err := s.Count(b.Context(), month, 0)
			return int(n), err
		}},
		{"statistics", func() (int, error) {
			stats, err := s.Stats(b.Context(), dlq.StatsQuery{Now: start.Add(rows * 25 * time.Second)})
			return len(stats.Hourly), err
		}},
		{"C27 as written", func() (int, error) {
			var message string
			var n int
			return 1, db.QueryRowContext(b.Context(), queryTopErrors).Scan(&message, &n)
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				n, err := c.run()
				require.NoError(b, err)
				require.NotZero(b, n)
			}
		})
	}
}
