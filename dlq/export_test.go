package dlq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
)

// everything returns all entries of a store with all their bodies, without the store's ids.
func everything(t *testing.T, s dlq.Store) map[driver.Key]driver.Exported {
	t.Helper()
	found := map[driver.Key]driver.Exported{}
	page := dlq.Page{Limit: driver.MaxPage}
	listing, err := s.List(t.Context(), dlq.Filter{}, page)
	require.NoError(t, err)
	require.Empty(t, listing.Next)
	for _, e := range listing.Entries {
		x := driver.Exported{Entry: e}
		for revision := 0; revision <= e.Revision; revision++ {
			body, err := s.Body(t.Context(), e.ID, revision)
			require.NoError(t, err)
			x.Bodies = append(x.Bodies, *body)
		}
		x.Entry.ID = 0
		found[e.Key] = x
	}
	return found
}

// Importing an export gives the same entries: every status, every time, every revision, hostile bytes.
func TestManager_ExportImport(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	m := operate(t, source, &outbox{})
	var ids []int64
	n := 0
	for _, payload := range dlqtest.Payloads() {
		d := death(n)
		n++
		d.Message.Payload = payload[:min(len(payload), 2<<20)] // of 16 MiB the race detector would make 30 seconds
		d.Message.Metadata["bytes"] = "\xff\x00\xfe"
		d.Message.Metadata["\xfe key"] = "a\nb"
		d.Origin.RoutingKey, d.Origin.Key = "\xff.key", []byte{0, 255}
		d.Origin.Timestamp = time.Now()
		ids = append(ids, stored(t, source, d))
	}
	_, err := m.Resolve(t.Context(), ids[0], ana)
	require.NoError(t, err)
	_, err = m.Discard(t.Context(), ids[1], ana)
	require.NoError(t, err)
	_, err = m.Redrive(t.Context(), ids[2], ana)
	require.NoError(t, err)
	_, err = m.Park(t.Context(), ids[3], ana)
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), ids[4], dlq.Edit{Payload: []byte("\x00edited\xff")}, ana)
	require.NoError(t, err)
	_, _, err = m.Edit(t.Context(), ids[4], dlq.Edit{SetHeaders: map[string]string{"tenant": "other"}}, ana)
	require.NoError(t, err)

	var file bytes.Buffer
	written, err := m.Export(t.Context(), &file, dlq.Filter{})
	require.NoError(t, err)
	require.Equal(t, int64(n), written)
	require.Equal(t, n, strings.Count(file.String(), "\n"))

	target := newStore(t)
	stored(t, target, death(777)) // so that the ids differ
	there := everything(t, target)
	to := operate(t, target, nil)
	for _, want := range []dlq.Imported{{Stored: int64(n)}, {Seen: int64(n)}} {
		got, err := to.Import(t.Context(), bytes.NewReader(file.Bytes()), dlq.By{Actor: "bob", Note: "moved"})
		require.NoError(t, err)
		require.Equal(t, want, got)
		imported := everything(t, target)
		for key := range there {
			delete(imported, key)
		}
		require.Equal(t, everything(t, source), imported)
	}
	records, _, err := to.AuditLog(t.Context(), dlq.AuditFilter{Action: driver.ActionImport},
		dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	require.Len(t, records, n)
	kept, err := target.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, int64(1), kept.Counts.Parked)
	require.NoError(t, target.Recount(t.Context()))
	counted, err := target.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, counted.Counts, kept.Counts)
}

func TestManager_ImportRefuses(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	stored(t, source, death(1))
	var file bytes.Buffer
	_, err := operate(t, source, nil).Export(t.Context(), &file, dlq.Filter{})
	require.NoError(t, err)
	good := strings.TrimSpace(file.String())
	for name, c := range map[string]struct{ line, want string }{
		"not JSON":       {"hello", "line 2"},
		"newer version":  {strings.Replace(good, `"v":2`, `"v":99`, 1), "version 99"},
		"newer types":    {`{"v":99,"entry":["other","types"],"bodies":"none"}`, "version 99"},
		"no version":     {`{}`, "version 0"},
		"no body":        {`{"v":2,"entry":{"version":1}}`, "body of revision 0 is missing"},
		"damaged":        {strings.Replace(good, `"payload":"`, `"payload":"AAAA`, 1), "SHA-256"},
		"unknown status": {strings.Replace(good, `"PENDING"`, `"LOST"`, 1), "status \"LOST\""},
		"short key":      {strings.Replace(good, `"key":"`, `"key":"AAAA","other":"`, 1), "the key has 3 bytes"},
	} {
		store := newStore(t)
		_, err := operate(t, store, nil).Import(t.Context(), strings.NewReader(good+"\n"+c.line+"\n"), ana)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, err, "line 2", name)
		require.Equal(t, int64(1), count(t, store, dlq.Filter{}), "the line before is stored")
	}
	_, err = operate(t, newStore(t), nil).Import(t.Context(), strings.NewReader(good), dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}

// Lines of programs with fewer fields: missing values are derived from the rest.
func TestManager_ImportDefaults(t *testing.T) {
	t.Parallel()
	source := newStore(t)
	stored(t, source, death(1))
	var file bytes.Buffer
	_, err := operate(t, source, nil).Export(t.Context(), &file, dlq.Filter{})
	require.NoError(t, err)
	var line map[string]any
	require.NoError(t, json.Unmarshal(file.Bytes(), &line))
	entry := line["entry"].(map[string]any)
	for _, field := range []string{
		"key", "version", "changed_at", "changed_by", "fingerprint", "cause", "died_at", "first_failure_at", "last_seen_at",
		"seen_count", "size",
	} {
		delete(entry, field)
	}
	data, err := json.Marshal(line)
	require.NoError(t, err)
	store := newStore(t)
	for range 2 {
		_, err = operate(t, store, nil).Import(t.Context(), bytes.NewReader(data), ana)
		require.NoError(t, err)
	}
	want, err := source.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, int64(1), count(t, store, dlq.Filter{}), "the same line is the same entry")
	got, err := store.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, want.Fingerprint, got.Fingerprint)
	require.Equal(t, want.CreatedAt, got.ChangedAt)
	require.Equal(t, want.Body, got.Body)
}

// Rows of a table with an older system's columns, as row_to_json writes them.
func TestManager_ImportTableRows(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	const full = `{"id":17,"event_id":"e-1","event_type":"EmployeeHired","source_table":"employees","source_id":"42",` +
		`"event_payload":{"cpf": "123", "n": 1.10},"error_message":"CPF inválido","stack_trace":"at ` +
		`X","retry_count":2,"max_retries":3,` +
		`"status":"RESOLVED","created_at":"2025-11-20T07:30:00.123456","last_retry_at":"2025-11-20T08:00:00",` +
		`"resolved_at":"2025-11-21T00:00:00","resolved_by":"ana","kafka_offset":1042,"kafka_partition":3,"kafka_topic":"employees",` +
		`"correlation_id":"0195b7a8-3c1e-7000-8000-000000000001"}`
	const least = `{"event_id":"e-2","event_payload":[1],"created_at":"2025-11-20T07:30:00+00:00"}`
	same := strings.Replace(full, `"id":17`, `"id":18`, 1)
	done, err := operate(t, store, nil).Import(t.Context(), strings.NewReader(full+"\n"+least+"\n"+same+"\n"+full+"\n"),
		ana)
	require.NoError(t, err)
	require.Equal(t, dlq.Imported{Stored: 3, Seen: 1}, done, "rows with other ids are other entries")
	e, err := store.Get(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []any{
		dlq.Resolved, "ana", 2, 3, "employees", int32(3), int64(1042), "CPF inválido", "EmployeeHired",
		"at X",
	}, []any{
		e.Status, e.ResolvedBy, e.RedriveCount, e.RedriveBudget, e.Origin.Topic, *e.Origin.Partition, *e.Origin.Offset,
		e.ErrorMessage,
		e.EventType, e.Body.Trace,
	})
	require.Equal(t, []byte(`{"cpf":"123","n":1.10}`), e.Body.Payload, "with every digit") //nolint:testifylint // exact bytes
	require.Equal(t, time.Date(2025, time.November, 20, 7, 30, 0, 123456000, time.UTC), e.CreatedAt)
	e, err = store.Get(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, dlq.Pending, e.Status)
	for text, want := range map[string]string{
		strings.Replace(full, "RESOLVED", "LOST", 1):                    `status "LOST"`,
		strings.Replace(least, `"event_id":"e-2",`, "", 1):              "event_id is missing",
		strings.Replace(least, `"event_payload":[1],`, "", 1):           "event_payload is missing",
		strings.Replace(least, "2025-11-20T07:30", "tomorrow", 1):       "is not a time",
		strings.Replace(full, `"retry_count":2`, `"retry_count":-2`, 1): "must not be negative",
		`{"event_id":"e-3","event_payload":1}`:                          "created_at is missing",
	} {
		_, err := operate(t, store, nil).Import(t.Context(), strings.NewReader(least+"\n"+text), ana)
		require.ErrorIs(t, err, dlq.ErrInvalid)
		require.ErrorContains(t, err, "line 2")
		require.ErrorContains(t, err, want)
	}
}

// An export that cannot read a revision of an existing entry fails; it does not leave the entry out.
func TestManager_ExportSkipsNothing(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	for n := range 3 {
		stored(t, store, death(n))
	}
	m := operate(t, &forgetfulStore{Store: store, entry: 2}, nil)
	_, err := m.Export(t.Context(), io.Discard, dlq.Filter{})
	require.ErrorContains(t, err, "entry 2: revision 0 is missing")
}

// forgetfulStore has lost the bodies of an entry.
type forgetfulStore struct {
	dlq.Store
	entry int64
}

func (s *forgetfulStore) Body(ctx context.Context, id int64, revision int) (*dlq.Body, error) {
	if id == s.entry {
		return nil, dlq.ErrNotFound
	}
	return s.Store.Body(ctx, id, revision)
}

// "Discard this group": entries that are already closed are not touched, and those taken meanwhile are reported.
func TestManager_Bulk(t *testing.T) {
	t.Parallel()
	store := newStore(t)
	m := operate(t, store, nil)
	entries := make([]*dlq.Entry, 1100)
	for n := range entries {
		d := death(n)
		if n%11 == 0 {
			d.Handler = "other"
		}
		entries[n] = dlq.NewEntry(d)
	}
	receipts, err := store.Put(t.Context(), entries...)
	require.NoError(t, err)
	_, err = m.Resolve(t.Context(), receipts[5].ID, ana)
	require.NoError(t, err)
	group := dlq.Filter{Handler: death(0).Handler}
	bulk, err := m.ChangeAll(t.Context(), driver.ActionDiscard, group, dlq.By{Actor: "bob", Note: "a test"})
	require.NoError(t, err)
	require.Equal(t, dlq.Bulk{Changed: 999}, bulk)
	bulk, err = m.ChangeAll(t.Context(), driver.ActionRestore,
		dlq.Filter{Handler: group.Handler, Statuses: []dlq.Status{dlq.Discarded}}, ana)
	require.NoError(t, err)
	require.Equal(t, int64(999), bulk.Changed)
	bulk, err = m.ChangeAll(t.Context(), driver.ActionPark, group, ana)
	require.NoError(t, err)
	require.Equal(t, int64(999), bulk.Changed)
	bulk, err = m.ChangeAll(t.Context(), driver.ActionResolve, dlq.Filter{
		Handler:  group.Handler,
		Statuses: []dlq.Status{dlq.Parked, dlq.Resolved},
	}, ana)
	require.NoError(t, err)
	require.Equal(t, []int64{999, 1}, []int64{bulk.Changed, bulk.Refused})
	require.ErrorContains(t, bulk.Conflicts[0], "by ana")
	require.Equal(t, int64(100), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}))
	_, err = m.ChangeAll(t.Context(), driver.ActionDiscard, dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
}
