package dlq_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/storetest"
	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/internal/sqldb"
)

func newStore(t testing.TB) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), "sqlite:"+storetest.File(t)+"?synchronous=normal")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// faultyStore is a store that can be made to fail.
type faultyStore struct {
	dlq.Store
	away   atomic.Bool
	lost   atomic.Bool                             // writes are done, but their confirmation is lost
	refuse func(context.Context, *dlq.Entry) error // letters that the store does not accept, though it answers
	puts   atomic.Int64                            // calls of Put
	hold   atomic.Pointer[chan struct{}]           // Put waits for it, or for its context
}

var errAway = errors.New("the database is down")

func (s *faultyStore) Put(ctx context.Context, letters ...*dlq.Entry) ([]driver.Receipt, error) {
	s.puts.Add(1)
	if hold := s.hold.Load(); hold != nil {
		select {
		case <-*hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if s.away.Load() {
		return nil, errAway
	}
	for _, e := range letters {
		if s.refuse == nil {
			continue
		}
		if err := s.refuse(ctx, e); err != nil {
			return nil, err
		}
	}
	receipts, err := s.Store.Put(ctx, letters...)
	if s.lost.Load() {
		return nil, errors.Join(errAway, err)
	}
	return receipts, err
}

func (s *faultyStore) Change(ctx context.Context, c driver.Change) ([]driver.Result, error) {
	if s.away.Load() {
		return nil, errAway
	}
	return s.Store.Change(ctx, c)
}

func (s *faultyStore) Ping(ctx context.Context) error {
	if s.away.Load() {
		return errAway
	}
	return s.Store.Ping(ctx)
}

func (s *faultyStore) Close() error { return nil } // newStore closes it, so that a test can inspect it at the end

func newLetters(t *testing.T, s dlq.Store, dir string, opts ...dlq.Option) (*dlq.Letters, *logbuffer.Buffer) {
	t.Helper()
	logs := &logbuffer.Buffer{}
	l, err := dlq.NewLetters(s, append([]dlq.Option{
		dlq.WithSpool(dir), dlq.WithImportBackoff(2*time.Millisecond, 10*time.Millisecond),
		dlq.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))),
		dlq.WithStoreTimeout(time.Minute), // a slow store is not a store that is down
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l, logs
}

func death(n int) *envelope.DeadLetter {
	m := message.NewMessage(fmt.Sprintf("uuid-%d", n), fmt.Appendf(nil, `{"n":%d}`, n))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("message-%d", n)
	m.Metadata[envelope.KeyRetryCount] = "3"
	m.Metadata["tenant"] = "acme"
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted,
		Err:   envelope.Error{Message: fmt.Sprintf("order %d: timeout", n), Code: "504"},
		Class: "*main.Timeout", Handler: "charge",
		Origin:   envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"},
		Attempts: 4, At: time.Now(),
	}
}

func count(t *testing.T, s dlq.Store, f dlq.Filter) int64 {
	t.Helper()
	n, err := s.Count(t.Context(), f, 0)
	require.NoError(t, err)
	return n
}

func files(t testing.TB, dir, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	require.NoError(t, err)
	return found
}

// eventually waits for an effect of the background import.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 2*time.Minute, 2*time.Millisecond, what)
}

func TestLetters_Stored(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t), t.TempDir()
	l, logs := newLetters(t, &faultyStore{Store: store}, dir)
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	require.Equal(t, int64(1), count(t, store, dlq.Filter{EventID: "message-1", Topic: "orders"}))
	require.Empty(t, files(t, filepath.Join(dir, "0"), "dlq-*"))
	require.Empty(t, logs.String())
	require.ErrorIs(t, l.DeadLetter(t.Context(), nil), dlq.ErrInvalid)
	require.ErrorIs(t, l.DeadLetter(t.Context(), &envelope.DeadLetter{}), dlq.ErrInvalid)
}

// The store is down: CRITICAL, the fallback file, and an automatic import when it is back.
func TestLetters_StoreDown(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	l, logs := newLetters(t, store, t.TempDir())
	store.away.Store(true)
	for n := range 5 {
		require.NoError(t, l.DeadLetter(t.Context(), death(n)))
	}
	stats := l.Stats()
	require.True(t, stats.StoreDown)
	require.ErrorIs(t, stats.LastError, errAway)
	require.Equal(t, int64(5), stats.Appended)
	require.Positive(t, stats.Bytes)
	alarms := 0
	for line := range strings.SplitSeq(strings.TrimSpace(logs.String()), "\n") {
		var record map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &record))
		if record["level"] != envelope.LevelCritical.String() {
			continue // the importer announces that it will try again
		}
		alarms++
		require.Contains(t, record["message_id"], "message-")
		require.Equal(t, l.Stats().Bytes > 0, record["spool"] != "")
		require.Contains(t, record, "error")
	}
	require.Equal(t, 5, alarms, "one alarm a letter")

	store.away.Store(false)
	eventually(t, "imported", func() bool { return l.Stats().Bytes == 0 && !l.Stats().StoreDown })
	require.Equal(t, int64(5), count(t, store, dlq.Filter{}))
	require.Equal(t, int64(5), l.Stats().Imported)
	require.NoError(t, l.DeadLetter(t.Context(), death(9)), "and straight to the store again")
	require.Equal(t, int64(6), count(t, store, dlq.Filter{}))
	require.Equal(t, int64(5), l.Stats().Appended)
}

// A SQLite file that is moved while the service runs is a store that is down: confirmed letters would be gone with the
// process. Back in its place, it has everything.
// clockedStore has a clock that the process's differs from.
type clockedStore struct {
	dlq.Store

	ahead time.Duration
}

func (s clockedStore) Now(context.Context) time.Time { return time.Now().Add(s.ahead) }
func (s clockedStore) Unwrap() dlq.Store             { return s.Store }

// A death is recorded by the store's clock, and so is the first failure before it, however far the process's is off.
// One without a first failure has not failed before: it got the time of a process that is behind.
func TestLetters_FirstFailureByTheStoresClock(t *testing.T) {
	for name, tt := range map[string]struct{ ahead, failing time.Duration }{
		"ahead": {-time.Hour, time.Minute}, "behind": {time.Hour, time.Minute}, "right": {0, time.Minute},
		"behind, no failure before": {ahead: time.Hour}, "ahead, no failure before": {ahead: -time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			store, err := sqlstore.Open(t.Context(), filepath.Join(t.TempDir(), "dead.db"))
			require.NoError(t, err)
			letters, err := dlq.NewLetters(clockedStore{store, tt.ahead}, dlq.WithoutSpool())
			require.NoError(t, err)
			for n, from := range []string{"", "rabbit"} {
				d := death(n)
				d.At, d.Collected.Broker = time.Now(), from
				if d.FirstFailure = (time.Time{}); tt.failing > 0 {
					d.FirstFailure = d.At.Add(-tt.failing)
				}
				require.NoError(t, letters.DeadLetter(t.Context(), d))
			}
			list, err := letters.Manager(nil).List(t.Context(), dlq.Filter{}, dlq.Page{})
			require.NoError(t, err)
			require.Len(t, list.Entries, 2)
			for _, e := range list.Entries {
				require.Equal(t, tt.failing, e.DiedAt.Sub(e.FirstFailureAt).Round(time.Second), "%+v", e.Origin)
			}
			require.NoError(t, letters.Close())
		})
	}
}

func TestLetters_StoreFileMoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dead.db")
	l, err := dlq.Open(t.Context(), "sqlite:"+path, dlq.WithSpool(t.TempDir()),
		dlq.WithImportBackoff(2*time.Millisecond, 10*time.Millisecond), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.DeadLetter(t.Context(), death(0)))
	require.NoError(t, os.Rename(path, path+".old"))
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	require.Equal(t, int64(1), l.Stats().Appended)
	require.ErrorContains(t, l.Stats().LastError, "deleted, moved or replaced")

	require.NoError(t, os.Rename(path+".old", path))
	eventually(t, "imported", func() bool { return l.Stats().Bytes == 0 && !l.Stats().StoreDown })
	require.Equal(t, int64(2), count(t, l.Store(), dlq.Filter{}))
}

// The spool returns exactly the entry that the store would have got.
func TestLetters_SpoolIsLossless(t *testing.T) {
	t.Parallel()
	direct, spooled := newStore(t), &faultyStore{Store: newStore(t)}
	l, _ := newLetters(t, spooled, t.TempDir())
	spooled.away.Store(true)
	partition, offset := int32(2), int64(77)
	payloads := dlqtest.Payloads()
	delete(payloads, "16 MiB") // irrelevant for the format, and slow with the race detector
	for name, payload := range payloads {
		d := death(1)
		d.Message.Payload = payload
		d.Message.Metadata["hostile\xff"] = "\x00\xfe\u2028"
		d.Message.UUID = "\xff"
		d.Err.Trace = "main.go:1\x00"
		d.Origin.Position, d.Origin.Partition, d.Origin.Offset = name, &partition, &offset
		d.Origin.Key, d.Origin.RoutingKey, d.Origin.Timestamp = []byte{0, 1}, "\xffkey", time.Now()
		require.NoError(t, l.DeadLetter(t.Context(), d))
		_, err := direct.Put(t.Context(), dlq.NewEntry(d))
		require.NoError(t, err)
	}
	spooled.away.Store(false)
	eventually(t, "imported", func() bool { return l.Stats().Bytes == 0 })
	for name := range payloads {
		find := func(s dlq.Store) *dlq.Entry {
			listing, err := s.List(t.Context(), dlq.Filter{}, dlq.Page{Limit: driver.MaxPage})
			require.NoError(t, err)
			for _, e := range listing.Entries {
				if e.Origin.Position == name {
					full, err := s.Get(t.Context(), e.ID)
					require.NoError(t, err)
					full.ID = 0
					return full
				}
			}
			require.Fail(t, "not found", name)
			return nil
		}
		want, got := find(direct), find(spooled)
		require.True(t, bytes.Equal(want.Body.Payload, got.Body.Payload), name)
		want.Body.Payload, got.Body.Payload = nil, nil
		require.Equal(t, want, got, name)
	}
}

// The store comes and goes under load, and loses confirmations: every dead letter is stored exactly once.
func TestLetters_StoreFlapsUnderLoad(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	l, _ := newLetters(t, store, t.TempDir())
	const callers, each = 16, 50
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				n := c*each + i
				if err := l.DeadLetter(t.Context(), death(n)); err != nil {
					t.Errorf("letter %d: %v", n, err)
				}
				switch n % 97 {
				case 10:
					store.away.Store(true)
				case 20:
					store.lost.Store(true)
				case 40:
					store.away.Store(false)
				case 50:
					store.lost.Store(false)
				}
			}
		})
	}
	wg.Wait()
	store.away.Store(false)
	store.lost.Store(false)
	eventually(t, "imported", func() bool { return l.Stats().Bytes == 0 })
	require.Equal(t, int64(callers*each), count(t, store, dlq.Filter{}))
	listing, err := store.List(t.Context(), dlq.Filter{}, dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	found := map[string]bool{}
	for _, e := range listing.Entries {
		found[e.EventID] = true
	}
	for n := range callers * each {
		require.True(t, found[fmt.Sprintf("message-%d", n)], "letter %d", n)
	}
	require.Positive(t, l.Stats().Appended, "some went through the spool")
}

// The timeout bounds a store that hangs, and only one letter waits for it, not every one.
func TestLetters_StoreHangs(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	l, _ := newLetters(t, store, t.TempDir(), dlq.WithStoreTimeout(20*time.Millisecond),
		dlq.WithImportBackoff(time.Hour, time.Hour))
	hold := make(chan struct{})
	store.hold.Store(&hold)
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	before := store.puts.Load()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for n := range 20 {
		require.NoError(t, l.DeadLetter(ctx, death(n)),
			"also for a caller whose context is over: at shutdown it matters most")
	}
	require.LessOrEqual(t, store.puts.Load(), before+1, "only the importer waits for a store that is known to hang")
	require.Equal(t, int64(21), l.Stats().Appended)
	close(hold)
	store.hold.Store(nil)
}

func TestLetters_NeitherStoreNorSpool(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	l, logs := newLetters(t, store, t.TempDir(), dlq.WithSpoolLimit(100))
	store.away.Store(true)
	err := l.DeadLetter(t.Context(), death(1))
	require.ErrorIs(t, err, errAway)
	require.ErrorIs(t, err, spool.ErrFull)
	require.Contains(t, logs.String(), "could neither be stored nor spooled")

	bare, err := dlq.NewLetters(store, dlq.WithoutSpool())
	require.NoError(t, err)
	require.ErrorIs(t, bare.DeadLetter(t.Context(), death(1)), errAway)
	require.Equal(t, dlq.SpoolStats{}, bare.Stats())
	require.NoError(t, bare.Close())
}

// The process ends while the store is down: the next one imports its spool, also from another process's directory.
func TestLetters_ImportedAtTheNextStart(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	store.away.Store(true)
	first, _ := newLetters(t, store, dir)
	second, _ := newLetters(t, store, dir) // a replica in the same directory has a separate place
	require.NoError(t, first.DeadLetter(t.Context(), death(1)))
	require.NoError(t, second.DeadLetter(t.Context(), death(2)))
	require.NoError(t, first.Close())
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	require.ErrorIs(t, first.DeadLetter(t.Context(), death(3)), dlq.ErrClosed)
	// The first one's look for orphans may have had the second one's first choice locked for a moment.
	require.Len(t, files(t, dir, "*/*.log"), 2)

	store.away.Store(false)
	newLetters(t, store, dir)
	eventually(t, "both imported", func() bool { return count(t, store, dlq.Filter{}) == 2 })
}

// An orphaned spool is imported although the store was down at the start.
func TestLetters_OrphanIsImportedLater(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	store.away.Store(true)
	first, _ := newLetters(t, store, dir)
	second, _ := newLetters(t, store, dir)
	require.NoError(t, second.DeadLetter(t.Context(), death(2)))
	require.NoError(t, second.Close())
	require.NoError(t, first.Close())
	third, _ := newLetters(t, store, dir)
	require.NoError(t, third.DeadLetter(t.Context(), death(3)))
	eventually(t, "it has looked", func() bool { return third.Stats().LastError != nil })
	store.away.Store(false)
	eventually(t, "both imported", func() bool { return count(t, store, dlq.Filter{}) == 2 })
}

// The spool of a process that dies after our start is imported too, within a minute and without a restart.
func TestLetters_OrphanOfLaterIsImported(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	ours, logs := newLetters(t, store, dir, dlq.WithAdoption(5*time.Millisecond))
	away := &faultyStore{Store: store.Store}
	away.away.Store(true)
	other, _ := newLetters(t, away, dir)
	require.NoError(t, other.DeadLetter(t.Context(), death(1)))
	require.NoError(t, other.Close())
	eventually(t, "imported", func() bool { return count(t, store, dlq.Filter{}) == 1 })

	// A file that is moved away stops neither us nor later letters, and raises one alarm.
	store.away.Store(true)
	require.NoError(t, ours.DeadLetter(t.Context(), death(2)))
	eventually(t, "the importer asks for the store first", func() bool { // with no file open that it would import
		return strings.Contains(logs.String(), "the spool cannot be imported yet")
	})
	file, elsewhere := files(t, filepath.Join(dir, "0"), "dlq-*.log")[0], filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(file, elsewhere))
	store.away.Store(false)
	eventually(t, "it is missed", func() bool { return ours.Stats().Missing == 1 && !ours.Stats().StoreDown })
	require.NoError(t, ours.DeadLetter(t.Context(), death(3)))
	require.Equal(t, int64(2), count(t, store, dlq.Filter{}))
	require.NoError(t, os.Rename(elsewhere, file))
	eventually(t, "it is back", func() bool { return count(t, store, dlq.Filter{}) == 3 })
	require.Equal(t, 1, strings.Count(logs.String(), "files of the spool are missing"))
}

// A record that the store never accepts is set aside for a person, once, and does not stop the others. One that fails
// with another error, which may pass, does not stop them either, and is stored when it has passed.
func TestLetters_RefusedRecord(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	var passed atomic.Bool
	store.refuse = func(_ context.Context, e *dlq.Entry) error {
		switch {
		case e.EventID == "message-3":
			return fmt.Errorf("value out of range: %w", dlq.ErrInvalid)
		case e.EventID == "message-4" && !passed.Load():
			return errors.New("no room for a letter of this size")
		default:
			return nil
		}
	}
	l, logs := newLetters(t, store, dir, dlq.WithAdoption(5*time.Millisecond))
	away := &faultyStore{Store: store.Store}
	away.away.Store(true)
	other, _ := newLetters(t, away, dir)
	store.away.Store(true)
	for n := range 7 {
		require.NoError(t, l.DeadLetter(t.Context(), death(n)))
	}
	store.away.Store(false)
	eventually(t, "the others are imported", func() bool { return count(t, store, dlq.Filter{}) == 5 })
	before := store.puts.Load()
	eventually(t, "the one is retried", func() bool { return store.puts.Load() > before+20 })
	require.False(t, l.Stats().StoreDown, "the store has accepted all others")
	require.NoError(t, l.DeadLetter(t.Context(), death(7)))
	require.Equal(t, int64(6), count(t, store, dlq.Filter{}), "directly")
	require.NoError(t, other.DeadLetter(t.Context(), death(8)))
	require.NoError(t, other.Close())
	eventually(t, "an orphan is imported", func() bool { return count(t, store, dlq.Filter{}) == 7 })
	store.away.Store(true)
	require.NoError(t, l.DeadLetter(t.Context(), death(9)))
	store.away.Store(false)
	eventually(t, "so is what came after it", func() bool { return count(t, store, dlq.Filter{}) == 8 })
	passed.Store(true)
	eventually(t, "it is imported", func() bool { return l.Stats().Bytes == 0 && !l.Stats().StoreDown })
	require.Equal(t, int64(9), count(t, store, dlq.Filter{}))
	stats := l.Stats()
	require.Equal(t, []int64{8, 7, 1}, []int64{stats.Appended, stats.Imported, stats.Refused})
	kept, err := os.ReadFile(filepath.Join(dir, "0", "refused.damaged"))
	require.NoError(t, err)
	require.Contains(t, string(kept), "message-3")
	require.Equal(t, 1, bytes.Count(kept, []byte{'\n'}))
	require.Equal(t, 1, strings.Count(logs.String(), "set aside for a person"))
}

// A letter that the store refuses does not make the store count as down: others do not take the spool meanwhile.
func TestLetters_RefusedLetterIsNoOutage(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	var asked atomic.Int64
	release := make(chan struct{})
	store.refuse = func(_ context.Context, e *dlq.Entry) error {
		if e.EventID != "message-0" {
			return nil
		}
		if asked.Add(1) > 1 { // by the importer
			<-release
		}
		return dlq.ErrInvalid
	}
	l, _ := newLetters(t, store, t.TempDir())
	require.NoError(t, l.DeadLetter(t.Context(), death(0)))
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	stats := l.Stats()
	close(release)
	require.False(t, stats.StoreDown)
	require.Equal(t, int64(1), stats.Appended)
	require.Equal(t, int64(1), count(t, store, dlq.Filter{}))
	eventually(t, "it is set aside", func() bool { return l.Stats().Refused == 1 && l.Stats().Bytes == 0 })
}

// A record that can be set aside only when the spool's disk has room stays in the spool, and does not make the store
// count as down.
func TestLetters_RefusedRecordWithoutRoom(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	store.refuse = func(_ context.Context, e *dlq.Entry) error {
		if e.EventID < "message-2" {
			return dlq.ErrInvalid
		}
		return nil
	}
	l, logs := newLetters(t, store, dir)
	blocked := filepath.Join(dir, "0", "refused.damaged")
	require.NoError(t, os.Mkdir(blocked, 0o700))
	store.away.Store(true)
	for n := range 2 {
		require.NoError(t, l.DeadLetter(t.Context(), death(n)))
	}
	store.away.Store(false)
	eventually(t, "it is tried", func() bool { return strings.Contains(logs.String(), "refused.damaged") })
	eventually(t, "the store is up", func() bool { return !l.Stats().StoreDown })
	require.NoError(t, l.DeadLetter(t.Context(), death(2)))
	require.Equal(t, int64(1), count(t, store, dlq.Filter{}), "directly")
	require.NoError(t, os.Remove(blocked))
	eventually(t, "they are set aside", func() bool { return l.Stats().Bytes == 0 })
	require.Equal(t, int64(2), l.Stats().Refused)
	require.Equal(t, 2, strings.Count(logs.String(), "set aside for a person"))
}

// A batch that is repeated, because its refused records cannot be set aside, does not append its other records to the
// spool each time.
func TestLetters_RefusedRecordWithoutRoomGrowsNothing(t *testing.T) {
	t.Parallel()
	store, dir := &faultyStore{Store: newStore(t)}, t.TempDir()
	var passed atomic.Bool
	store.refuse = func(_ context.Context, e *dlq.Entry) error {
		switch {
		case e.EventID == "message-1": // message-0 may be a batch alone
			return dlq.ErrInvalid
		case passed.Load():
			return nil
		default:
			return errors.New("a table is locked")
		}
	}
	l, logs := newLetters(t, store, dir)
	blocked := filepath.Join(dir, "0", "refused.damaged")
	require.NoError(t, os.Mkdir(blocked, 0o700))
	store.away.Store(true)
	for n := range 3 {
		require.NoError(t, l.DeadLetter(t.Context(), death(n)))
	}
	waiting := l.Stats().Bytes
	store.away.Store(false)
	eventually(t, "it is tried ten times", func() bool { return strings.Count(logs.String(), "refused.damaged") >= 10 })
	require.Equal(t, waiting, l.Stats().Bytes)
	passed.Store(true)
	require.NoError(t, os.Remove(blocked))
	eventually(t, "all are imported", func() bool { return l.Stats().Bytes == 0 })
	require.Equal(t, int64(2), count(t, store, dlq.Filter{}))
	require.Equal(t, int64(1), l.Stats().Refused)
}

// A letter that the database keeps waiting, because its row is locked, takes neither the time nor the turn of others.
func TestLetters_SlowRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &faultyStore{Store: newStore(t)}
		store.refuse = func(ctx context.Context, e *dlq.Entry) error {
			if e.EventID < "message-8" {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		l, _ := newLetters(t, store, t.TempDir(), dlq.WithStoreTimeout(5*time.Second))
		store.away.Store(true)
		for n := range 10 { // the time for a batch is over before all of the slow ones have failed
			require.NoError(t, l.DeadLetter(t.Context(), death(n)))
		}
		store.away.Store(false)
		time.Sleep(3 * time.Minute) // virtual
		synctest.Wait()
		require.Equal(t, int64(2), count(t, store, dlq.Filter{}))
		store.away.Store(true) // so that the end does not wait
	})
}

// A database without room answers, and may even store small changes, but refuses no letter: each one is stored when
// there is room again.
func TestLetters_DatabaseFull(t *testing.T) {
	t.Parallel()
	for name, letters := range map[string]int{"one letter": 1, "several letters": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, limit := limited(t, "file:"+storetest.File(t)+"?_txlock=immediate&_pragma=busy_timeout(60000)")
			own, err := sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: sqlstore.SQLite})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, own.Close()) })
			limit(1) // as large as it is

			store := &faultyStore{Store: own}
			l, _ := newLetters(t, store, t.TempDir())
			for n := range letters {
				d := death(n)
				d.Message.Payload = bytes.Repeat([]byte{'x'}, 64<<10) // more than the free pages
				require.NoError(t, l.DeadLetter(t.Context(), d))
			}
			require.NoError(t, store.Ping(t.Context()), "it answers")
			eventually(t, "ten rounds", func() bool { return store.puts.Load() > int64(20*letters) })
			require.True(t, l.Stats().StoreDown)
			limit(1 << 30)
			eventually(t, "imported", func() bool { return l.Stats().Bytes == 0 })
			require.Equal(t, int64(letters), count(t, store, dlq.Filter{}))
			stats := l.Stats()
			require.Equal(t, []int64{int64(letters), 0}, []int64{stats.Imported, stats.Refused})
		})
	}
}

// limited opens a SQLite file whose size can be limited. The limit is the connection's, and a connection is replaced
// when the time for a statement ends while it runs, as on a busy machine: the next one gets the limit as well.
func limited(t *testing.T, dsn string) (db *sql.DB, limit func(pages int64)) {
	t.Helper()
	var most atomic.Int64
	most.Store(1 << 30)
	pragma := func() string { return fmt.Sprintf("PRAGMA max_page_count = %d", most.Load()) }
	drv := &sqlite.Driver{}
	drv.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		_, err := conn.ExecContext(context.Background(), pragma(), nil)
		return err
	})
	db = sql.OpenDB(sqldb.NewConnector(drv, dsn))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1)
	return db, func(pages int64) {
		most.Store(pages)
		_, err := db.ExecContext(t.Context(), pragma())
		require.NoError(t, err)
	}
}

// The outcome of a redrive that the store cannot record goes through the spool, too.
func TestLetters_RedriveOutcomeIsSpooled(t *testing.T) {
	t.Parallel()
	store := &faultyStore{Store: newStore(t)}
	l, logs := newLetters(t, store, t.TempDir())
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	sent := make(chan *message.Message, 1)
	manager := l.Manager(dlq.RedriverFunc(func(_ context.Context, _ envelope.Origin, m *message.Message,
		_ time.Duration,
	) error {
		sent <- m
		return nil
	}))
	entry, err := manager.Redrive(t.Context(), 1, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	m := <-sent
	id := m.Metadata[envelope.KeyRedriveID]
	require.Equal(t, driver.FormatID(entry.ID), id)

	store.away.Store(true)
	require.NoError(t, l.Redriven(t.Context(), envelope.RedrivenBy(m, envelope.Origin{}, time.Now())))
	require.Contains(t, logs.String(), `"record":"redrive outcome"`)
	store.away.Store(false)
	eventually(t, "recorded", func() bool {
		return count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}) == 1
	})

	// An outcome of a foreign, deleted or closed entry is not a failure of the handled message.
	for _, outcome := range [][2]string{
		{id, "message-1"},
		{id, "message-2"},
		{"4711", "message-1"},
		{"x", "message-1"},
		{"", ""},
	} {
		require.NoError(t, l.Redriven(t.Context(),
			envelope.Redriven{EntryID: outcome[0], Number: 1, MessageID: outcome[1], At: time.Now()}))
	}
	require.Equal(t, int64(1), count(t, store, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}))
}

func TestNewLetters_BadOptions(t *testing.T) {
	t.Parallel()
	_, err := dlq.NewLetters(nil)
	require.Error(t, err)
	_, err = dlq.NewLetters(&faultyStore{}, dlq.WithStoreTimeout(0), dlq.WithRedriveBudget(-1), dlq.WithLogger(nil),
		dlq.WithImportBackoff(2, 1))
	for _, fault := range []string{"store timeout", "redrive budget", "logger", "import backoff"} {
		require.ErrorContains(t, err, fault, "all faults are reported together")
	}
}
