package dlq

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Letters stores the dead letters of a pipeline and the outcomes of redriven messages: in the store, or in the spool
// while the store does not answer. It is safe for concurrent use. Close it after the router has stopped.
type Letters struct {
	store Store
	opts  options
	spool *spool.Spool // nil without one

	mu       sync.RWMutex // every call that writes holds a read lock, so that Close waits for them
	closed   bool
	importer *importer // nil without a spool
	outcomes outcomes
}

// Open opens the store that the URL names and the spool alongside it. An empty URL is [DefaultURL], a text without a
// scheme is the path of a SQLite file. Dead letters that an earlier process left in the spool are imported in the
// background.
//
// An unreachable database does not keep a service from starting: Open logs it at level CRITICAL, and dead letters go to
// the spool as they do when the database fails later. Opening is retried in the background. With [WithStoreRequired] it
// is an error.
func Open(ctx context.Context, rawURL string, opts ...Option) (*Letters, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	o.spool.Owner = spoolOwner(rawURL)
	open := func(ctx context.Context) (Store, error) { return o.mux.OpenStore(ctx, rawURL) }
	if o.noSpool || o.storeRequired {
		store, err := open(ctx)
		if err != nil {
			return nil, err
		}
		return newLetters(store, o, nil) //nolint:contextcheck // the import outlives the call that opens
	}
	return openLate(ctx, newLateStore(open), o)
}

// openLate opens the store, or starts with the spool when the store does not answer.
func openLate(ctx context.Context, store *lateStore, o options) (*Letters, error) {
	within, cancel := context.WithTimeout(ctx, o.openTimeout)
	defer cancel()
	opened, err := store.get(within)
	switch {
	case err == nil:
		return newLetters(opened, o, nil) //nolint:contextcheck // the import outlives the call that opens
	case ctx.Err() != nil, within.Err() == nil && !errors.Is(err, driver.ErrUnavailable):
		closing := store.Close() // ends the attempt
		if cause := store.cause(); cause != nil {
			err = cause
		}
		return nil, errors.Join(err, closing)
	}
	l, openErr := newLetters(store, o, err) //nolint:contextcheck // the import outlives the call that opens
	if openErr != nil {
		return nil, errors.Join(openErr, err)
	}
	o.logger.LogAttrs(ctx, envelope.LevelCritical,
		"the dead letter store does not answer: dead letters go to the spool until it does",
		slog.String("spool", l.spool.Dir()), slog.Any("error", err))
	return l, nil
}

// NewLetters makes Letters of an open store and takes ownership of it: Close closes it, and so does an error.
func NewLetters(store Store, opts ...Option) (*Letters, error) {
	if store == nil {
		return nil, errors.New("dlq: NewLetters: the store is nil")
	}
	o, err := newOptions(opts)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return newLetters(store, o, nil)
}

// newLetters takes ownership of the store. failing is why it counts as down from the beginning, or nil.
func newLetters(store Store, o options, failing error) (*Letters, error) {
	if o.observer != nil {
		store = observed(store, o.observer)
	}
	l := &Letters{store: store, opts: o}
	if o.noSpool {
		return l, nil
	}
	dir := o.spoolDir
	if dir == "" {
		dir = "redrive-spool"
		if s, ok := driver.As[interface{ SpoolDir() string }](store); ok && s.SpoolDir() != "" {
			dir, l.opts.spool.Owner = s.SpoolDir(), "" // the file's own, which may be moved with it
		}
	}
	spool, err := spool.OpenSlot(dir, l.opts.spool)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	l.spool = spool
	l.importer = startImporter(store, spool, dir, &l.opts, failing)
	return l, nil
}

// spoolOwner names the store of a URL: without a password, and only with the parameters that lead to another store.
func spoolOwner(rawURL string) string {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return "" // opening it fails, too
	}
	kind := scheme.Canonical(u.Scheme)
	port := map[string]string{"postgres": ":5432", "mysql": ":3306"}[kind]
	if kind == "sqlite" {
		if path, err := filepath.Abs(cmp.Or(u.Opaque, u.Host+u.Path)); err == nil {
			u.Opaque, u.Host, u.Path = "", "", path
		}
	}
	params := u.Query()
	maps.DeleteFunc(params, func(key string, _ []string) bool {
		return !slices.Contains([]string{
			"schema", "search_path", "options", "role", "host", "port", "dbname", "service", "socket",
		}, key)
	})
	named := url.URL{Scheme: kind, Opaque: u.Opaque, Path: u.Path}
	named.Host = strings.TrimSuffix(strings.ToLower(u.Host), port)
	named.RawQuery = params.Encode()
	return named.String()
}

// Manager returns a Manager of the stored letters. It sends redriven messages through r, for example a brokers.Broker;
// with a nil r it cannot redrive. Use [NewManager] to change other settings.
func (l *Letters) Manager(r Redriver) *Manager {
	m, err := NewManager(ManagerConfig{Store: l.store, Redriver: r, Logger: l.opts.logger})
	if err != nil {
		panic(err) // store and logger are set, the rest are defaults
	}
	return m
}

// Store is the underlying store, including the wrapper of [WithObserver]. It is closed with the Letters.
func (l *Letters) Store() Store { return l.store }

// SpoolStats is the state of the spool, and of the store as seen by the spool.
type SpoolStats struct {
	spool.Stats

	// StoreDown means that the store does not answer and everything goes to the spool; LastError is its last error.
	StoreDown bool
	LastError error
}

// Stats reports the state of the spool, for gauges and health checks. It does not query the store.
func (l *Letters) Stats() SpoolStats {
	if l.spool == nil {
		return SpoolStats{}
	}
	stats := SpoolStats{Stats: l.spool.Stats()}
	l.importer.mu.Lock()
	defer l.importer.mu.Unlock()
	stats.StoreDown, stats.LastError = l.importer.failing != nil, l.importer.failing
	return stats
}

// Close waits for calls in flight, imports what it can from the spool, and closes spool and store. The rest stays on
// disk for the next process. It may be called more than once.
func (l *Letters) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.importer != nil {
		l.importer.stop()
	}
	var err error
	if l.spool != nil {
		err = l.spool.Close()
	}
	return errors.Join(err, l.store.Close())
}

type txKey struct{}

// offeredTx is a transaction, and the context that it was offered with: pipelines dead-letter with a context that
// outlives it.
type offeredTx struct {
	tx  *sql.Tx
	ctx context.Context //nolint:containedctx // only checked for its end
}

// ContextWithTx offers [Letters.DeadLetter] a transaction on the store's database, so that a dead letter and related
// work commit together: a row marked invalid and its dead letter, or a dead letter and the offset of its message.
//
// The caller commits after DeadLetter has returned nil, and acks the message only after the commit; if the commit
// fails, the message must be redelivered. Never offer a transaction that a failing handler has worked in: roll it back,
// and let the dead letter be stored in a separate one, as it is without an offer. A transaction that cannot be used,
// because it is over or a statement in it has failed, is ignored, and the letter is stored as if none had been offered.
// But if ctx has ended by then, for example because another worker has the message, DeadLetter returns an error, and
// the message must be redelivered: a transaction begun with ctx can no longer be committed.
func ContextWithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txKey{}, offeredTx{tx, ctx})
}

// putTx stores the entry in the transaction that the context offers, if there is one and the store supports it, and
// reports whether it did. After an error the entry must not be stored at all.
func (l *Letters) putTx(ctx context.Context, entry *Entry) (bool, error) {
	offered, _ := ctx.Value(txKey{}).(offeredTx)
	if _, ok := driver.As[driver.TxStore](l.store); offered.tx == nil || !ok {
		return false, nil
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.storeTimeout)
	defer cancel()
	var err error
	if offered.ctx.Err() == nil {
		if err = putTx(ctx, l.store, offered.tx, entry); err == nil {
			return true, nil
		}
	}
	if offered.ctx.Err() != nil {
		cause := context.Cause(offered.ctx) //nolint:contextcheck // the one that ends the transaction
		return false, fmt.Errorf("dlq: dead letter: in the offered transaction: %w", cause)
	}
	l.opts.logger.WarnContext(ctx, "the offered transaction cannot be used for the dead letter: it is stored in a "+
		"separate one",
		"message_id", entry.EventID, "error", err)
	return false, nil
}
