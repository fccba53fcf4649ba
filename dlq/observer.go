package dlq

import (
	"context"
	"database/sql"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Observer is notified of what this process has done to a store, for metrics. Its methods are called after the store
// has answered; they must be fast, safe for concurrent use, and must not change or keep what they are given. What other
// processes do to the same store, they tell their own observers.
type Observer interface {
	// Put is notified of dead letters and what the store made of each. Those in a transaction of the caller's
	// ([ContextWithTx]) are told of before it commits.
	Put(letters []*Entry, receipts []driver.Receipt)
	// Changed is notified of a change of entries; results with an error were refused.
	Changed(c driver.Change, results []driver.Result)
	// Failed is notified that the store did not answer; op is put or change.
	Failed(op string, err error)
}

// WithObserver tells o what the Letters, and Managers made by [Letters.Manager], do to the store. Defaults to none.
func WithObserver(o Observer) Option { return func(opts *options) { opts.observer = o } }

// observed returns the store with o notified of everything that is done to it. Other interfaces than [Store] are found
// by its method Unwrap, which returns store.
func observed(store Store, o Observer) Store { return &observedStore{store, o} }

type observedStore struct {
	Store

	observer Observer
}

// Observer is notified: wrappers of a [Store] may report too.
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

// putTx tells the observer of an entry that is in a transaction.
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
