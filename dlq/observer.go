package dlq

import (
	"context"
	"database/sql"

	"github.com/redrive-go/redrive/dlq/driver"
)

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
