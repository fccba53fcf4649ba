package dlq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/spool"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/wait"
)

// importer imports the spool into the store: at the start, and each time that the store recovers. It is one goroutine.
type importer struct {
	store Store
	spool *spool.Spool
	dir   string // with the spools of all processes on this machine, ours included
	opts  *options

	woken   chan struct{}
	cancel  context.CancelFunc
	stopped chan struct{}

	mu      sync.Mutex
	failing error // why the store is treated as down; nil while it is not

	adoptAt time.Time // when to look for spools of dead processes next; used by the goroutine only
}

// startImporter starts the goroutine. failing is why the store counts as down from the beginning, or nil.
func startImporter(store Store, spool *spool.Spool, dir string, o *options, failing error) *importer {
	ctx, cancel := context.WithCancel(context.Background())
	i := &importer{
		store: store, spool: spool, dir: dir, opts: o, failing: failing,
		woken: make(chan struct{}, 1), cancel: cancel, stopped: make(chan struct{}),
	}
	go i.run(ctx)
	return i
}

// down reports whether the store is known to be unreachable.
func (i *importer) down() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failing != nil
}

func (i *importer) setFailing(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failing = err
}

// wake is called when something was spooled because of cause. A refusal says nothing about the store.
func (i *importer) wake(cause error) {
	if !errors.Is(cause, errStoreDown) && !errors.Is(cause, ErrInvalid) {
		i.setFailing(cause)
	}
	wait.Signal(i.woken)
}

// stop ends the goroutine after a last attempt.
func (i *importer) stop() {
	i.cancel()
	<-i.stopped
	if i.down() || i.spool.Empty() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), i.opts.storeTimeout)
	defer cancel()
	if err := i.drain(ctx, i.spool); err != nil {
		i.opts.logger.WarnContext(ctx, "dead letters stay in the spool for the next start", "spool", i.spool.Dir(), "error",
			err)
	}
}

func (i *importer) run(ctx context.Context) {
	defer close(i.stopped)
	pause, failures := time.Duration(0), 0 // an earlier process may have left something
	trying := wait.Backoff{First: i.opts.importBackoff, Longest: i.opts.importMax}
	for i.sleep(ctx, pause) {
		err := i.round(ctx)
		if ctx.Err() != nil {
			return
		}
		_, stuck := errors.AsType[*stuckError](err)
		if fromStore, ok := errors.AsType[*storeError](err); ok {
			i.setFailing(fromStore.err)
		} else if !stuck { // an unreadable file does not mean that the store is unreachable
			i.setFailing(nil)
		}
		switch {
		case err != nil:
			failures++
			pause = trying.After(failures)
			i.opts.logger.WarnContext(ctx, "the spool cannot be imported yet", "spool", i.spool.Dir(), "error", err, "retry_in",
				pause)
		case !i.spool.Empty(): // spooled while the store still counted as down
			pause = 0
		default:
			pause, failures = -1, 0
		}
	}
}

// round imports what is waiting in our spool and, every minute, in those of dead processes.
func (i *importer) round(ctx context.Context) error {
	if i.down() { // the ping also opens a store that did not answer at the start, for which an empty spool is no occasion
		if err := i.ping(ctx); err != nil {
			return &storeError{err}
		}
	}
	err := i.drain(ctx, i.spool)
	if _, fromStore := errors.AsType[*storeError](err); fromStore || time.Now().Before(i.adoptAt) {
		return err
	}
	adopted := i.adopt(ctx)
	if adopted == nil {
		i.adoptAt = time.Now().Add(i.opts.adoptEvery)
	}
	return errors.Join(err, adopted)
}

// sleep waits for d; when d is negative, until something is spooled or the other spools are due. It returns false when
// the importer stops.
func (i *importer) sleep(ctx context.Context, d time.Duration) bool {
	var woken <-chan struct{}
	if d < 0 {
		woken, d = i.woken, time.Until(i.adoptAt)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(max(d, 0)):
	case <-woken:
	}
	return ctx.Err() == nil
}

// adopt imports what dead processes have left in their spools next to ours. A spool in use belongs to its process.
func (i *importer) adopt(ctx context.Context) error {
	entries, err := os.ReadDir(i.dir)
	if err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		dir := filepath.Join(i.dir, entry.Name())
		if _, err := strconv.Atoi(entry.Name()); err != nil || dir == i.spool.Dir() {
			continue
		}
		cfg := i.opts.spool
		cfg.Dir = dir
		orphan, err := spool.Open(cfg)
		if errors.Is(err, spool.ErrLocked) {
			continue
		}
		if err != nil { // another user's, perhaps
			i.opts.logger.WarnContext(ctx, "another process's spool cannot be opened", "spool", dir, "error", err)
			continue
		}
		if !orphan.Empty() {
			err = i.drain(ctx, orphan)
		}
		err = errors.Join(err, orphan.Close())
		if _, fromStore := errors.AsType[*storeError](err); fromStore {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (i *importer) drain(ctx context.Context, s *spool.Spool) error {
	before := s.Stats()
	if before.Bytes == 0 {
		s.Seal()
	}
	var stuck *stuckError
	err := s.Drain(ctx, func(ctx context.Context, lines [][]byte) error {
		if stuck != nil { // its lines are in a later batch; the next drain starts with this one
			return stuck
		}
		err := i.importLines(ctx, s, lines)
		if errors.As(err, &stuck) {
			return nil
		}
		if err == nil {
			i.setFailing(nil) // new letters need not wait for the backlog, which under load may never end
		}
		return err
	})
	after := s.Stats()
	if n := after.Imported - before.Imported; n > 0 {
		i.opts.logger.InfoContext(ctx, "dead letters imported from the spool", "spool", s.Dir(), "count", n)
	}
	if n := after.Damaged - before.Damaged; n > 0 {
		i.opts.logger.Log(ctx, envelope.LevelCritical, "damaged lines in the spool: the file was set aside for a person",
			"files", s.DamagedFiles(), "count", n)
	}
	if n := after.Torn - before.Torn; n > 0 {
		i.opts.logger.Log(ctx, envelope.LevelCritical, "the last line of a spool file is incomplete: it was set aside",
			"files", s.DamagedFiles(), "count", n)
	}
	if n := after.Missing - before.Missing; n > 0 {
		i.opts.logger.Log(ctx, envelope.LevelCritical, "files of the spool are missing: move them back to import them",
			"spool", s.Dir(), "count", n)
	}
	return err
}

// storeError means that the store did not accept an entry that was read.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// stuckError means that the store answers, but accepted none of a batch, which is at the end of the spool now. It may
// be the letters, or a full disk. The store counts as before until a letter is stored, or a new one fails.
type stuckError struct{ storeError }

// importLines stores a batch of lines; if that fails, one by one. What the store rejects for good, or what is not a
// record, is set aside. Any other error may pass although the store answers: its disk is full, or a table is locked.
// Such a line goes to the end of the spool, so that it does not stop the others.
func (i *importer) importLines(ctx context.Context, s *spool.Spool, lines [][]byte) error {
	timeout := max(i.opts.storeTimeout, 30*time.Second) // a batch takes longer than one letter
	err := i.put(ctx, timeout, lines...)
	if err == nil {
		return nil
	}
	if pingErr := i.ping(ctx); pingErr != nil {
		return &storeError{errors.Join(err, pingErr)}
	}
	end := time.Now().Add(timeout)
	var failed, again, refused [][]byte
	var causes []error // of the refused ones
	for n, line := range lines {
		if !time.Now().Before(end) { // the next time, these are first
			again = lines[n:]
			break
		}
		if len(lines) > 1 {
			err = i.put(ctx, i.opts.storeTimeout, line) // a slow one leaves time for the others
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrInvalid):
			refused, causes = append(refused, line), append(causes, err)
		case i.ping(ctx) != nil:
			return &storeError{err}
		default:
			failed = append(failed, line)
		}
	}
	again = slices.Concat(again, failed)
	// First, because it may fail for as long as its file cannot be written: each repetition would requeue the others.
	if err := s.Refuse(refused...); err != nil {
		return err
	}
	if err := s.Requeue(ctx, again...); err != nil {
		return err
	}
	for _, cause := range causes { // at the end: a batch that is repeated raises no second alarm
		i.opts.logger.LogAttrs(ctx, envelope.LevelCritical, "the store refuses a record: it was set aside for a person",
			slog.String("file", s.RefusedFile()), slog.Any("error", cause))
	}
	if len(again) == len(lines) {
		return &stuckError{storeError{err}}
	}
	return nil
}

func (i *importer) put(ctx context.Context, timeout time.Duration, lines ...[]byte) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	records := make([]wire.Record, len(lines))
	for n, line := range lines {
		var err error
		if records[n], err = decodeRecord(line); err != nil {
			return err
		}
	}
	return putRecords(ctx, i.store, i.opts.logger, records)
}

func (i *importer) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, i.opts.storeTimeout)
	defer cancel()
	return i.store.Ping(ctx)
}

// spooled returns the entry of a record. Fields derived from its error are computed again, because their rules may have
// changed since.
func spooled(letter *wire.EntryDetail) (*Entry, error) {
	e := &Entry{}
	if err := e.SetDetail(letter); err != nil {
		return nil, err
	}
	e.Cause = Normalize(e.ErrorMessage)
	e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	e.Size = int64(len(e.Body.Payload))
	e.ChangedBy = e.DiedBy()
	return e, nil
}

// encodeRecord encodes a record of the current version as a spool line: JSON without a line feed.
func encodeRecord(r wire.Record) ([]byte, error) {
	r.Version = wire.Version
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("dlq: spool: %w", err)
	}
	return bytes.TrimSuffix(line.Bytes(), []byte{'\n'}), nil
}

func decodeRecord(data []byte) (wire.Record, error) {
	var r wire.Record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("dlq: spool: %w: record: %w", ErrInvalid, err)
	}
	if r.Dead == nil && r.Redriven == nil {
		return r, fmt.Errorf("dlq: spool: %w: the record is neither a dead letter nor an outcome", ErrInvalid)
	}
	return r, nil
}

// putRecords stores a sequence of records in order. Adjacent dead letters go in one call.
func putRecords(ctx context.Context, store Store, logger *slog.Logger, records []wire.Record) error {
	var dead []*Entry
	flush := func() error {
		if len(dead) == 0 {
			return nil
		}
		_, err := store.Put(ctx, dead...)
		dead = dead[:0]
		return err
	}
	for _, r := range records {
		if r.Dead != nil {
			e, err := spooled(r.Dead)
			if err != nil {
				return err
			}
			dead = append(dead, e)
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		results, err := store.Change(ctx, succeeded(*r.Redriven))
		if err == nil {
			err = outcomeError(ctx, *r.Redriven, results[0].Err, logger)
		}
		if err != nil {
			return err
		}
	}
	return flush()
}
