package sqlstore_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Callers that share a transaction with a letter that the database rejects get their own answers: its caller an error,
// otherwise the message would be acked and lost, and the others their receipts.
func TestPut_OneIsRefusedAmongMany(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	_, err := db.ExecContext(t.Context(), `CREATE TRIGGER refuse BEFORE INSERT ON dlq_entries WHEN NEW.event_type = 'poison'
		BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
	require.NoError(t, err)
	poison := func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyEvent] = "poison" } // escaped it is the same
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
				if letter.EventType == "poison" {
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

// A text that the database would never accept blocks neither its letter nor others of the same call or moment: it is
// escaped. Payload and headers are unchanged.
func TestPut_RefusedTextIsEscaped(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	for _, table := range []string{"dlq_entries", "dlq_groups"} {
		column := map[string]string{"dlq_entries": "error_message", "dlq_groups": "cause"}[table]
		_, err := db.ExecContext(t.Context(), "CREATE TRIGGER refuse_"+table+" BEFORE INSERT ON "+table+" WHEN instr(NEW."+
			column+
			", '\u00e9') BEGIN SELECT RAISE(ABORT, 'no accents here'); END")
		require.NoError(t, err)
	}
	letters := []*dlq.Entry{entry(1, time.Now()), entry(2, time.Now(), func(d *envelope.DeadLetter) {
		d.Err.Message = "inv\u00e9lido"
		d.Message.Metadata["tenant"] = "caf\u00e9"
		d.Message.Payload = []byte("caf\u00e9 \xff")
	}), entry(3, time.Now())}
	receipts, err := s.Put(t.Context(), letters...)
	require.NoError(t, err)
	require.Len(t, receipts, 3)
	for i, receipt := range receipts {
		require.Equal(t, driver.Stored, receipt.Result)
		got, err := s.Get(t.Context(), receipt.ID)
		require.NoError(t, err)
		require.Equal(t, letters[i].EventID, got.EventID)
		require.Equal(t, letters[i].Body.Payload, got.Body.Payload)
		require.Equal(t, letters[i].Body.Headers, got.Body.Headers)
		require.Equal(t, letters[i].Fingerprint, got.Fingerprint)
	}
	got, err := s.Get(t.Context(), receipts[1].ID)
	require.NoError(t, err)
	require.Contains(t, got.ErrorMessage, "escaped texts")
	require.Contains(t, got.ErrorMessage, "no accents here")
	require.Contains(t, got.ErrorMessage, `inv\u00e9lido`)
	again, err := s.Put(t.Context(), letters[1])
	require.NoError(t, err)
	require.Equal(t, driver.Receipt{ID: receipts[1].ID, Result: driver.Seen}, again[0], "it is known again")

	_, err = db.ExecContext(t.Context(), "CREATE TRIGGER refuse_all BEFORE INSERT ON dlq_entries"+
		" BEGIN SELECT RAISE(ABORT, 'nothing at all'); END")
	require.NoError(t, err)
	_, err = s.Put(t.Context(), entry(4, time.Now()))
	require.ErrorIs(t, err, dlq.ErrInvalid, "the spool sets it aside")
	require.ErrorContains(t, err, "nothing at all")
}
