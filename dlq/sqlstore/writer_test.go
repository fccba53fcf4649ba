package sqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// Callers that share a transaction with a letter which the database does not take get their own answers: that one an error, else its
// message would be acked and lost, and the others their receipts.
func TestPut_OneIsRefusedAmongMany(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	_, err := db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON dlq_entries WHEN NEW.error_message = 'poison'
		BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
	require.NoError(t, err)
	poison := func(d *envelope.DeadLetter) { d.Err.Message = "poison" }
	const callers = 24
	for round := range 8 {
		var calls sync.WaitGroup
		begin := make(chan struct{})
		for i := range callers {
			n := round*callers + i + 1
			letter := entry(n, time.Now())
			if i == round*3 {
				letter = entry(n, time.Now(), poison)
			}
			calls.Go(func() {
				<-begin
				receipts, err := s.Put(t.Context(), letter)
				if letter.ErrorMessage == "poison" {
					assert.ErrorContains(t, err, "refused by the test")
					return
				}
				if assert.NoError(t, err) && assert.Len(t, receipts, 1) {
					stored, err := s.Get(t.Context(), receipts[0].ID)
					if assert.NoError(t, err) {
						assert.Equal(t, letter.EventID, stored.EventID, "the receipt is of the caller's own letter")
					}
				}
			})
		}
		close(begin)
		calls.Wait()
	}
	n, err := s.Count(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err)
	require.Equal(t, int64(8*(callers-1)), n)
}
