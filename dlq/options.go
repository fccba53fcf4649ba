package dlq

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/envelope"
)

// DefaultRedriveBudget is how often a message should be redriven before a person looks at it (the column max_retries).
const DefaultRedriveBudget = 3

type options struct {
	mux           *driver.Mux
	logger        *slog.Logger
	spoolDir      string
	spool         spool.Config
	noSpool       bool
	storeTimeout  time.Duration
	importBackoff time.Duration
	importMax     time.Duration
	redriveBudget int
	source        func(envelope.Envelope) (table, id string)
	observer      Observer
	storeRequired bool
	openTimeout   time.Duration
	adoptEvery    time.Duration
}

// Option is an option of [Open] and [NewLetters].
type Option func(*options)

// WithLogger sets where alarms and outcomes are logged. Defaults to slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// WithSpool sets the directory of the spool, which should be on another disk than the store's. Each process uses a
// separate subdirectory, and names its store there: processes that [Open] other stores leave it alone. Defaults to the
// store's file name with the suffix "-spool" for a SQLite file, else to "redrive-spool" in the working directory.
func WithSpool(dir string) Option { return func(o *options) { o.spoolDir = dir } }

// WithSpoolLimit sets the size limit of the spool on disk. Defaults to 1 GiB. When it is full, DeadLetter fails, and
// the pipeline nacks messages at a limited rate.
func WithSpoolLimit(bytes int64) Option { return func(o *options) { o.spool.MaxBytes = bytes } }

// WithoutSpool makes DeadLetter fail when the store does: for tests, and for systems without a writable disk.
func WithoutSpool() Option { return func(o *options) { o.noSpool = true } }

// WithStoreRequired makes [Open] fail when the store does not answer, even though the spool could be used: for a
// service that should not start without its store.
func WithStoreRequired() Option { return func(o *options) { o.storeRequired = true } }

// WithStoreTimeout limits an attempt to store, after which the spool is used. Defaults to 5 s.
func WithStoreTimeout(d time.Duration) Option { return func(o *options) { o.storeTimeout = d } }

// WithImportBackoff sets the pauses between attempts to import the spool: first min, then doubled up to max. Defaults
// to 200 ms and 30 s.
func WithImportBackoff(minimum, maximum time.Duration) Option {
	return func(o *options) { o.importBackoff, o.importMax = minimum, maximum }
}

// WithRedriveBudget sets max_retries of new entries. Defaults to [DefaultRedriveBudget].
func WithRedriveBudget(n int) Option { return func(o *options) { o.redriveBudget = n } }

// WithSource sets the function that finds the table and id of the business record behind a message. It must not panic.
// Defaults to the metadata source_table and source_id. Rules of redact for headers of these names hide both.
func WithSource(find func(envelope.Envelope) (table, id string)) Option {
	return func(o *options) { o.source = find }
}

// WithMux makes [Open] look up its driver in m instead of the global registry.
func WithMux(m *driver.Mux) Option { return func(o *options) { o.mux = m } }

func defaultOptions() options {
	return options{
		mux:           &driver.DefaultMux,
		logger:        slog.Default(),
		storeTimeout:  5 * time.Second,
		importBackoff: 200 * time.Millisecond,
		importMax:     30 * time.Second,
		redriveBudget: DefaultRedriveBudget,
		openTimeout:   30 * time.Second,
		adoptEvery:    time.Minute,
		source: func(e envelope.Envelope) (string, string) {
			return e.Meta("source_table"), e.Meta("source_id")
		},
	}
}

func newOptions(opts []Option) (options, error) {
	o := defaultOptions()
	for _, opt := range opts {
		opt(&o)
	}
	return o, o.validate()
}

func (o *options) validate() error {
	var errs []error
	if o.mux == nil || o.logger == nil || o.source == nil {
		errs = append(errs, errors.New("the mux, the logger and the source function must not be nil"))
	}
	if o.storeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("store timeout %s: must be positive", o.storeTimeout))
	}
	if o.importBackoff <= 0 || o.importMax < o.importBackoff {
		errs = append(errs, fmt.Errorf("import backoff %s to %s: the first must be positive, the second not below it",
			o.importBackoff, o.importMax))
	}
	if o.redriveBudget < 0 {
		errs = append(errs, fmt.Errorf("redrive budget %d: must not be negative", o.redriveBudget))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dlq: options: %w", err)
	}
	return nil
}

// Observer is notified of this process's operations on a store, for metrics. Its methods are called after the store has
// answered; they must be fast, safe for concurrent use, and must not change or keep their arguments. Other processes
// notify their own observers.
type Observer interface {
	// Put is called with dead letters and their receipts. For letters in a transaction of the caller's ([ContextWithTx])
	// it is called before the commit.
	Put(letters []*Entry, receipts []driver.Receipt)
	// Changed is called with a change of entries; results with an error were refused.
	Changed(c driver.Change, results []driver.Result)
	// Failed is called when the store did not answer; op is put or change.
	Failed(op string, err error)
}

// WithObserver notifies o of the operations of the Letters, and of Managers made by [Letters.Manager]. Defaults to
// none.
func WithObserver(o Observer) Option { return func(opts *options) { opts.observer = o } }

// observed returns a store that notifies o. Interfaces other than [Store] are found through its method Unwrap, which
// returns store.
func observed(store Store, o Observer) Store { return &observedStore{store, o} }

type observedStore struct {
	Store

	observer Observer
}

// Observer returns the observer: wrappers of a [Store] may notify it too.
func (s *observedStore) Observer() Observer { return s.observer }

// Unwrap returns the store itself.
func (s *observedStore) Unwrap() Store { return s.Store }

// Put implements [Store].
func (s *observedStore) Put(ctx context.Context, letters ...*Entry) ([]driver.Receipt, error) {
	receipts, err := s.Store.Put(ctx, letters...)
	if err != nil {
		s.observer.Failed("put", err)
		return receipts, err
	}
	s.observer.Put(letters, receipts)
	return receipts, nil
}

// Change implements [Store].
func (s *observedStore) Change(ctx context.Context, c driver.Change) ([]driver.Result, error) {
	results, err := s.Store.Change(ctx, c)
	if err != nil {
		s.observer.Failed("change", err)
		return results, err
	}
	s.observer.Changed(c, results)
	return results, nil
}

// putTx notifies the observer of an entry in a transaction.
func putTx(ctx context.Context, store Store, tx *sql.Tx, entry *Entry) error {
	with, ok := driver.As[driver.TxStore](store)
	if !ok {
		return ErrInvalid
	}
	receipts, err := with.PutTx(ctx, tx, entry)
	if o, observed := store.(*observedStore); observed && err == nil {
		o.observer.Put([]*Entry{entry}, receipts)
	}
	return err
}
