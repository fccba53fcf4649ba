package dlq

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// goldenAt is a time with microseconds, a store's precision.
func goldenAt(minute int) time.Time {
	return time.Date(2025, 11, 20, 7, minute, 0, 123456000, time.UTC)
}

// goldenEntry has a value in every field that a file keeps, with invalid UTF-8 wherever a message may bring it.
func goldenEntry() *driver.Exported {
	partition, offset := int32(3), int64(1<<53+1)
	x := &driver.Exported{Entry: Entry{
		ID: 42, Key: driver.Key(sha256.Sum256([]byte("key"))), EventID: "message \"1\"", EventType: "order.placed",
		SourceTable: "orders", SourceID: "4711",
		CorrelationID: "c-1",
		Origin: envelope.Origin{
			Broker: "kafka", Topic: "orders\xff", Consumer: "billing", Exchange: "<events>", RoutingKey: "\xfe.placed",
			Key:       []byte{0, 255, 'k'},
			Partition: &partition, Offset: &offset, Position: "3:9007199254740993", Timestamp: goldenAt(1),
		},
		Handler: "pay", Reason: envelope.ReasonExhausted, ErrorMessage: "bank: timeout after 17s\nfor \"ana\"",
		ErrorCode: "504", ErrorClass: "*bank.Error",
		Rule: "timeouts", Attempts: 4, Status: Resolved, Version: 7, RedriveCount: 2, RedriveBudget: 3, DeathRedrive: 1,
		SeenCount:  5,
		LeaseUntil: goldenAt(9), Run: "run-1", CreatedAt: goldenAt(2), FirstFailureAt: goldenAt(3), DiedAt: goldenAt(4),
		LastSeenAt:    goldenAt(5),
		LastRedriveAt: goldenAt(6), SucceededAt: goldenAt(7), ResolvedAt: goldenAt(8), ResolvedBy: "ana",
		ChangedAt: goldenAt(8), ChangedBy: "ana",
		Revision: 1,
	}}
	for i, payload := range [][]byte{[]byte(`{"total": 1.50, "text":"a\u0000b <>&"}`), {0, 255, '\n', 'x'}} {
		x.Bodies = append(x.Bodies, Body{
			Revision: i, UUID: "w-\xff", Payload: payload, ContentType: "application/json", Trace: "main.go:1\n\tmain.go:2",
			SHA256:  sha256.Sum256(payload),
			Headers: map[string]string{"tenant": "acme", "bytes": "\xff\x00\xfe", "\xfe key": "a\nb", "empty": ""},
		})
	}
	x.Entry.Cause = Normalize(x.Entry.ErrorMessage)
	x.Entry.Fingerprint = Fingerprint(x.Entry.Handler, x.Entry.ErrorClass, x.Entry.ErrorCode, x.Entry.ErrorMessage)
	x.Entry.Size = int64(len(x.Bodies[1].Payload))
	return x
}

// goldenLetter is the same dead letter on its way into a store, redriven once.
func goldenLetter() *Entry {
	x := goldenEntry()
	e := x.Entry
	e.ID, e.Status, e.Version, e.SeenCount, e.Revision = 0, Pending, 1, 1, 0
	e.LeaseUntil, e.Run, e.LastRedriveAt, e.SucceededAt, e.ResolvedAt, e.ResolvedBy = time.Time{}, "", time.Time{},
		time.Time{}, time.Time{}, ""
	e.RedriveOf, e.DeathRedrive, e.RedriveCount = 41, 2, 2
	e.CreatedAt, e.LastSeenAt, e.ChangedAt = e.DiedAt, e.DiedAt, e.DiedAt
	e.Body = &x.Bodies[0]
	e.Size = int64(len(e.Body.Payload))
	e.ChangedBy = e.DiedBy()
	return &e
}

// The form written today is pinned: the golden files of version 2 have it.
func TestWire_Version2(t *testing.T) {
	t.Parallel()
	line, err := json.Marshal(goldenEntry().Wire())
	require.NoError(t, err)
	golden(t, "testdata/export-v2.jsonl", append(line, '\n'))
	x, err := readLine(line)
	require.NoError(t, err)
	require.Equal(t, goldenEntry(), x)

	var written []byte
	dir := t.TempDir()
	into, err := spool.Open(spool.Config{Dir: dir})
	require.NoError(t, err)
	dead := goldenLetter().Detail()
	for _, r := range []wire.Record{
		{Dead: &dead}, {Redriven: &wire.Redriven{ID: 42, MessageID: "message \"1\"", At: goldenAt(9)}},
	} {
		data, err := encodeRecord(r)
		require.NoError(t, err)
		require.NoError(t, into.Append(t.Context(), data))
		written = append(append(written, data...), '\n')
	}
	require.NoError(t, into.Close())
	golden(t, "testdata/spool-v2.jsonl", written)
	records := drained(t, dir)
	letter, err := spooled(records[0].Dead)
	require.NoError(t, err)
	require.Equal(t, goldenLetter(), letter)
	require.Equal(t, &wire.Redriven{ID: 42, MessageID: "message \"1\"", At: goldenAt(9)}, records[1].Redriven)
}

// A line that lacks derivable fields is completed, one that lacks others is refused.
func TestWire_LinesOfOthers(t *testing.T) {
	t.Parallel()
	w := goldenEntry().Wire()
	w.Entry.Fingerprint, w.Entry.ChangedAt, w.Entry.ChangedBy, w.Entry.Cause, w.Entry.SeenCount = "", time.Time{}, "", "",
		0
	line, err := json.Marshal(w)
	require.NoError(t, err)
	x, err := readLine(line)
	require.NoError(t, err)
	want := goldenEntry()
	want.Entry.SeenCount = 1
	require.Equal(t, want, x)
	w.Entry.CreatedAt = time.Time{}
	line, err = json.Marshal(w)
	require.NoError(t, err)
	_, err = readLine(line)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "created_at")
}

// golden compares with a file; UPDATE_GOLDEN=1 writes it.
func golden(t *testing.T, path string, data []byte) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(data))
}

// drained returns the records of a spool.
func drained(t *testing.T, dir string) []wire.Record {
	t.Helper()
	s, err := spool.Open(spool.Config{Dir: dir})
	require.NoError(t, err)
	var records []wire.Record
	require.NoError(t, s.Drain(t.Context(), func(_ context.Context, lines [][]byte) error {
		for _, line := range lines {
			r, err := decodeRecord(line)
			if err != nil {
				return err
			}
			records = append(records, r)
		}
		return nil
	}))
	require.NoError(t, s.Close())
	return records
}
