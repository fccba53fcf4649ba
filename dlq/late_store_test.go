package dlq_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// lateDriver opens a store once it is available.
type lateDriver struct {
	store dlq.Store
	there atomic.Bool
	hangs bool
	cause error
}

func (d *lateDriver) OpenStore(ctx context.Context, _ *url.URL) (dlq.Store, error) {
	if d.hangs && !d.there.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if !d.there.Load() {
		return nil, d.cause
	}
	return d.store, nil
}

func openLate(t *testing.T, d *lateDriver, opts ...dlq.Option) (*dlq.Letters, *logbuffer.Buffer, error) {
	t.Helper()
	logs := &logbuffer.Buffer{}
	mux := &driver.Mux{}
	mux.Register("late", d)
	l, err := dlq.Open(t.Context(), "late:", append([]dlq.Option{
		dlq.WithMux(mux), dlq.WithSpool(t.TempDir()), dlq.WithImportBackoff(2*time.Millisecond, 10*time.Millisecond),
		dlq.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))), dlq.WithStoreTimeout(time.Minute),
	}, opts...)...)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, l.Close()) })
	}
	return l, logs, err
}

var errDown = fmt.Errorf("%w: connection refused", driver.ErrUnavailable)

// A service starts while its database is down: everything goes to the spool, an alarm is raised, and all is stored when
// it is back.
func TestOpen_WhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	d := &lateDriver{store: newStore(t), cause: errDown}
	l, logs, err := openLate(t, d)
	require.NoError(t, err)
	require.Contains(t, logs.String(), "does not answer: dead letters go to the spool")
	require.True(t, l.Stats().StoreDown)
	manager := l.Manager(nil)
	_, err = manager.Get(t.Context(), 1)
	require.ErrorIs(t, err, driver.ErrUnavailable)
	require.ErrorIs(t, l.Store().Ping(t.Context()), driver.ErrUnavailable)
	for n := range 5 {
		require.NoError(t, l.DeadLetter(t.Context(), death(n)))
	}
	require.Equal(t, int64(5), l.Stats().Appended)

	d.there.Store(true)
	eventually(t, "imported", func() bool { return l.Stats().Imported == 5 && !l.Stats().StoreDown })
	require.Equal(t, int64(5), count(t, d.store, dlq.Filter{}))
	require.NoError(t, l.DeadLetter(t.Context(), death(9)))
	require.Equal(t, int64(5), l.Stats().Appended, "straight to the store now")
	_, err = manager.Get(t.Context(), 1)
	require.NoError(t, err)
	_, ok := driver.As[driver.TxStore](l.Store())
	require.True(t, ok, "what else the store offers is found")
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Store().Ping(t.Context()), dlq.ErrClosed)
}

// A spool is imported only into the store that its letters were meant for, although services share a directory. Letters
// of an earlier version, which named no store, are imported by the first process that finds them.
func TestOpen_SpoolOfAnotherStore(t *testing.T) {
	t.Parallel()
	abs, err := filepath.Abs("dead.db")
	require.NoError(t, err)
	for name, test := range map[string]struct {
		first, second string
		unnamed, same bool
	}{
		"another host":        {first: "late://one/shop", second: "late://two/shop"},
		"another database":    {first: "late://one/shop", second: "late://one/payroll"},
		"another schema":      {first: "late://one/shop?schema=shop", second: "late://one/shop?schema=payroll"},
		"no schema":           {first: "late://one/shop?schema=shop", second: "late://one/shop"},
		"another password":    {first: "late://ana:x@one/shop", second: "late://bob:y@ONE/shop?timeout=5s", same: true},
		"another role":        {first: "late://one/shop?role=shop", second: "late://one/shop?role=payroll"},
		"another search path": {first: "late://one/shop?options=-csearch_path%3Dshop", second: "late://one/shop"},
		"PostgreSQL's names":  {first: "postgres://one/shop", second: "postgresql://One:5432/shop", same: true},
		"MySQL's names":       {first: "mysql://one:3306/shop", second: "mariadb://one/shop", same: true},
		"another port":        {first: "mysql://one:3306/shop", second: "mysql://one:3307/shop"},
		"a relative file":     {first: "sqlite:dead.db", second: "sqlite:" + abs, same: true},
		"another spelling":    {first: "sqlite://dead.db", second: "sqlite3:" + abs, same: true},
		"another file":        {first: "sqlite://Dead.db", second: "sqlite://dead.db"},
		"of an older version": {first: "late://one/shop", second: "late://two/shop", unnamed: true, same: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			open := func(d *lateDriver, url string) (*dlq.Letters, *logbuffer.Buffer) {
				mux, logs := &driver.Mux{}, &logbuffer.Buffer{}
				for _, scheme := range []string{"late", "postgres", "postgresql", "mysql", "mariadb", "sqlite", "sqlite3"} {
					mux.Register(scheme, d)
				}
				l, err := dlq.Open(t.Context(), url, dlq.WithMux(mux), dlq.WithSpool(dir), dlq.WithAdoption(5*time.Millisecond),
					dlq.WithImportBackoff(2*time.Millisecond, 10*time.Millisecond),
					dlq.WithLogger(slog.New(slog.NewJSONHandler(logs, nil))))
				require.NoError(t, err)
				return l, logs
			}
			down, _ := open(&lateDriver{cause: errDown}, test.first)
			require.NoError(t, down.DeadLetter(t.Context(), death(1)))
			require.NoError(t, down.Close())
			if test.unnamed {
				require.NoError(t, os.Remove(filepath.Join(dir, "0", "store")))
			}

			d := &lateDriver{store: &faultyStore{Store: newStore(t)}}
			d.there.Store(true)
			second, logs := open(d, test.second)
			if test.same {
				eventually(t, "imported", func() bool { return count(t, d.store, dlq.Filter{}) == 1 })
				require.NoError(t, second.Close())
				return
			}
			eventually(t, "it is found", func() bool { return strings.Contains(logs.String(), spool.ErrForeign.Error()) })
			require.NoError(t, second.Close())
			require.Zero(t, count(t, d.store, dlq.Filter{}))
			require.NotContains(t, logs.String(), "CRITICAL")
			first, _ := open(d, test.first)
			eventually(t, "imported", func() bool { return count(t, d.store, dlq.Filter{}) == 1 })
			require.NoError(t, first.Close())
		})
	}
}

// The store is found again, as Stats shows, even if nothing was spooled meanwhile.
func TestOpen_StoreReturnsWithoutNewLetters(t *testing.T) {
	t.Parallel()
	d := &lateDriver{store: newStore(t), cause: errDown}
	l, _, err := openLate(t, d)
	require.NoError(t, err)
	d.there.Store(true)
	eventually(t, "it is up", func() bool { return !l.Stats().StoreDown })
	require.NoError(t, l.DeadLetter(t.Context(), death(1)))
	require.Zero(t, l.Stats().Appended)
}

// A call that needs an optional part of the store opens it first, as every other call does. It found none, and a purge
// emptied months instead of dropping them.
func TestOpen_FirstCallNeedsAnOptionalPart(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(*dlq.Manager) error{
		"record": func(m *dlq.Manager) error {
			return m.Record(t.Context(), driver.AuditRecord{Actor: "ana", Action: driver.ActionRead, At: time.Now()})
		},
		"unarchive": func(m *dlq.Manager) error {
			_, err := m.Unarchive(t.Context(), dlq.By{Actor: "ana"}, 7)
			return err
		},
		"services": func(m *dlq.Manager) error {
			_, err := m.Services(t.Context(), time.Time{})
			return err
		},
		"pause": func(m *dlq.Manager) error { return m.PauseIntake(t.Context(), "billing", true, dlq.By{Actor: "ana"}) },
		"mutes": func(m *dlq.Manager) error {
			_, err := m.Mutes(t.Context())
			return err
		},
		"purge": func(m *dlq.Manager) error {
			_, err := m.Purge(t.Context(), dlq.Purge{ClosedBefore: time.Now(), Actor: "ana"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			months := &monthStore{Store: newStore(t)}
			d := &lateDriver{store: months, cause: errDown}
			l, _, err := openLate(t, d, dlq.WithImportBackoff(time.Hour, time.Hour))
			require.NoError(t, err)
			require.ErrorIs(t, call(l.Manager(nil)), driver.ErrUnavailable, "not that the store has no such part")
			d.there.Store(true)
			require.NoError(t, call(l.Manager(nil)))
			require.Equal(t, name == "purge", months.purged.Load())
		})
	}
}

// monthStore knows whether its months were purged.
type monthStore struct {
	*sqlstore.Store
	purged atomic.Bool
}

func (s *monthStore) PurgeMonths(ctx context.Context, p dlq.Purge) (int, error) {
	s.purged.Store(true)
	return s.Store.PurgeMonths(ctx, p)
}

// Faults that waiting does not cure, and those that the caller insists on, are still errors.
func TestOpen_LateRefuses(t *testing.T) {
	t.Parallel()
	wrong := errors.New("no such database")
	for name, c := range map[string]struct {
		cause error
		opts  []dlq.Option
	}{
		"a wrong configuration":    {wrong, nil},
		"a store that is required": {errDown, []dlq.Option{dlq.WithStoreRequired()}},
		"no spool":                 {errDown, []dlq.Option{dlq.WithoutSpool()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := openLate(t, &lateDriver{cause: c.cause}, c.opts...)
			require.EqualError(t, err, c.cause.Error(), "its own words, and nothing else")
		})
	}
	file := filepath.Join(t.TempDir(), "no", "such", "directory", "dead.db")
	_, err := dlq.Open(t.Context(), "sqlite:"+file, dlq.WithSpool(t.TempDir()))
	require.Error(t, err, "a file does not reappear")
}

// A service that ends while the database hangs does not wait for it.
func TestOpen_ContextEnds(t *testing.T) {
	t.Parallel()
	d := &lateDriver{hangs: true}
	mux := &driver.Mux{}
	mux.Register("late", d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := dlq.Open(ctx, "late:", dlq.WithMux(mux), dlq.WithSpool(t.TempDir()))
	require.ErrorIs(t, err, context.Canceled)
}
