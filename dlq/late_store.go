package dlq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// errNotOpen means that a store that did not answer at the start has not been opened yet.
var errNotOpen = errors.New("the store has not answered since the start, and is not open yet")

// lateStore is a store that is opened by the calls that need it, until one succeeds: its database may be down when the
// service starts. Attempts to open are made one at a time.
type lateStore struct {
	open   func(ctx context.Context) (Store, error)
	ctx    context.Context //nolint:containedctx // for attempts to open, which outlive the calls that wait for them
	cancel context.CancelFunc

	mu      sync.Mutex    // guards the fields below
	store   Store         // nil until it is open
	attempt chan struct{} // closed when the attempt in flight has ended; nil without one
	err     error         // of the last attempt
	closed  bool
}

var _ Store = (*lateStore)(nil)

func newLateStore(open func(ctx context.Context) (Store, error)) *lateStore {
	ctx, cancel := context.WithCancel(context.Background())
	return &lateStore{open: open, ctx: ctx, cancel: cancel}
}

// get returns the store, and tries to open it first if necessary. The end of ctx does not abort the attempt, which may
// be migrating.
func (s *lateStore) get(ctx context.Context) (Store, error) {
	if attempt := s.begin(); attempt != nil {
		select {
		case <-attempt:
		case <-ctx.Done():
			return nil, fmt.Errorf("dlq: %w: %w", errNotOpen, ctx.Err())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, fmt.Errorf("dlq: %w", ErrClosed)
	case s.store == nil:
		return nil, fmt.Errorf("dlq: %w: %w", errNotOpen, s.err)
	default:
		return s.store, nil
	}
}

// begin starts an attempt to open unless one is in flight, and returns a channel that is closed when it has ended; nil
// if there is nothing to open.
func (s *lateStore) begin() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store != nil || s.closed {
		return nil
	}
	if s.attempt == nil {
		s.attempt = make(chan struct{})
		go s.try(s.attempt)
	}
	return s.attempt
}

func (s *lateStore) try(attempt chan struct{}) {
	defer close(attempt)
	store, err := s.open(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt, s.err = nil, err
	if err == nil {
		s.store = store
	}
}

// cause returns why the last attempt failed.
func (s *lateStore) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Unwrap returns the open store, so that its optional interfaces are found, and nil if it is not open.
func (s *lateStore) Unwrap() Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store
}

// Close ends an attempt to open, and closes the store if it is open.
func (s *lateStore) Close() error {
	s.cancel()
	s.mu.Lock()
	s.closed = true // before it waits, so that no attempt begins that would open a store which nothing closes
	attempt := s.attempt
	s.mu.Unlock()
	if attempt != nil {
		<-attempt
	}
	s.mu.Lock()
	store := s.store
	s.store = nil
	s.mu.Unlock()
	if store == nil {
		return nil
	}
	return store.Close()
}

// late makes one call to a store, which is opened first if necessary.
func late[T any](ctx context.Context, s *lateStore, call func(Store) (T, error)) (T, error) {
	store, err := s.get(ctx)
	if err != nil {
		var none T
		return none, err
	}
	return call(store)
}

// optional returns an optional interface of a store, as [driver.As] does, but opens a store that did not answer at the
// start first: until then it is not known what it implements.
func optional[T any](ctx context.Context, s Store) (found T, ok bool, err error) {
	if found, ok = driver.As[T](s); ok {
		return found, true, nil
	}
	if err := s.Ping(ctx); err != nil {
		return found, false, err
	}
	found, ok = driver.As[T](s)
	return found, ok, nil
}

// required is optional with an error for a store that does not implement the interface.
func required[T any](ctx context.Context, s Store, missing error) (T, error) {
	found, ok, err := optional[T](ctx, s)
	if err == nil && !ok {
		err = missing
	}
	return found, err
}

// Put implements [Store].
func (s *lateStore) Put(ctx context.Context, letters ...*Entry) ([]driver.Receipt, error) {
	return late(ctx, s, func(store Store) ([]driver.Receipt, error) { return store.Put(ctx, letters...) })
}

// Get implements [Store].
func (s *lateStore) Get(ctx context.Context, id int64) (*Entry, error) {
	return late(ctx, s, func(store Store) (*Entry, error) { return store.Get(ctx, id) })
}

// Body implements [Store].
func (s *lateStore) Body(ctx context.Context, id int64, revision int) (*Body, error) {
	return late(ctx, s, func(store Store) (*Body, error) { return store.Body(ctx, id, revision) })
}

// List implements [Store].
func (s *lateStore) List(ctx context.Context, f Filter, p Page) (driver.Listing, error) {
	return late(ctx, s, func(store Store) (driver.Listing, error) { return store.List(ctx, f, p) })
}

// Count implements [Store].
func (s *lateStore) Count(ctx context.Context, f Filter, limit int64) (int64, error) {
	return late(ctx, s, func(store Store) (int64, error) { return store.Count(ctx, f, limit) })
}

// Change implements [Store].
func (s *lateStore) Change(ctx context.Context, c driver.Change) ([]driver.Result, error) {
	return late(ctx, s, func(store Store) ([]driver.Result, error) { return store.Change(ctx, c) })
}

// Revise implements [Store].
func (s *lateStore) Revise(ctx context.Context, r driver.Revision) (*Entry, error) {
	return late(ctx, s, func(store Store) (*Entry, error) { return store.Revise(ctx, r) })
}

// Import implements [Store].
func (s *lateStore) Import(ctx context.Context, by By, at time.Time, letters ...driver.Exported) ([]driver.Receipt,
	error,
) {
	return late(ctx, s, func(store Store) ([]driver.Receipt, error) { return store.Import(ctx, by, at, letters...) })
}

// Purge implements [Store].
func (s *lateStore) Purge(ctx context.Context, p Purge) (int, error) {
	return late(ctx, s, func(store Store) (int, error) { return store.Purge(ctx, p) })
}

// Audit implements [Store].
func (s *lateStore) Audit(ctx context.Context, f AuditFilter, p Page) ([]driver.AuditRecord, string, error) {
	store, err := s.get(ctx)
	if err != nil {
		return nil, "", err
	}
	return store.Audit(ctx, f, p)
}

// Groups implements [Store].
func (s *lateStore) Groups(ctx context.Context, q GroupQuery) ([]driver.Group, error) {
	return late(ctx, s, func(store Store) ([]driver.Group, error) { return store.Groups(ctx, q) })
}

// Stats implements [Store].
func (s *lateStore) Stats(ctx context.Context, q StatsQuery) (driver.Stats, error) {
	return late(ctx, s, func(store Store) (driver.Stats, error) { return store.Stats(ctx, q) })
}

// Recount implements [Store].
func (s *lateStore) Recount(ctx context.Context) error {
	_, err := late(ctx, s, func(store Store) (any, error) { return nil, store.Recount(ctx) })
	return err
}

// Ping implements [Store].
func (s *lateStore) Ping(ctx context.Context) error {
	_, err := late(ctx, s, func(store Store) (any, error) { return nil, store.Ping(ctx) })
	return err
}
