package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/redrive-go/redrive/dlq/driver"
)

var (
	// ErrClosed means that the spool was closed.
	ErrClosed = driver.ErrClosed
	// ErrFull means that the spool has reached its size limit: the line was not accepted.
	ErrFull = errors.New("spool is full")
	// ErrLocked means that another process uses the spool.
	ErrLocked = errors.New("spool is in use by another process")
	// ErrForeign means that lines of another owner wait in the spool.
	ErrForeign = errors.New("spool has lines for another store")
)

// Config configures a [Spool].
type Config struct {
	// Dir is the directory. Required. If missing, it is created for this user only.
	Dir string
	// MaxBytes limits the waiting data on disk. Defaults to 1 GiB.
	MaxBytes int64
	// SegmentBytes is the size at which a file is closed and the next one started. Defaults to 64 MiB.
	SegmentBytes int64
	// Owner is whose lines these are, for example the name of a store. They wait for a process with the same Owner, or
	// for the first one if it is empty. Optional.
	Owner string
}

// Spool keeps lines in local files until they are drained. A line that Append has accepted survives a crash and a power
// loss: it was written and synced, together with those of concurrent callers. A Spool is safe for concurrent use within
// its process, and locked against other processes.
type Spool struct {
	cfg  Config
	lock *flock.Flock

	appends chan *appendRequest
	seals   chan chan struct{}
	quit    chan struct{}
	stopped chan struct{}

	closeOnce sync.Once
	closeErr  error
	draining  sync.Mutex // one drain at a time

	mu      sync.Mutex // guards the fields below, up to stats
	waiting []*segment // closed segments, the oldest first
	bytes   int64      // of all segments, including the open one
	begun   time.Time  // when the open one got its first line; zero without one
	missing []*segment // closed segments whose files are missing: every drain looks for them again
	aside   int64      // lines of the current batch that were refused or requeued
	stats   Stats

	// Only the writer goroutine uses these.
	file    *os.File
	current *segment
	number  int
}

// Stats is the state of a spool.
type Stats struct {
	// Bytes are waiting on disk, MaxBytes is the limit.
	Bytes, MaxBytes int64
	// OldestSince is when the oldest waiting file was begun, or last written if an earlier process wrote it; zero if
	// nothing waits.
	OldestSince time.Time
	// Appended, Imported, Damaged and Refused count lines since the start: accepted, delivered to the store, unreadable,
	// and set aside because the store would never accept them. Torn counts incomplete ends of files: writes that never
	// returned, or lines whose end the disk has lost.
	Appended, Imported, Damaged, Refused, Torn int64
	// Missing counts files that existed and no longer do: moved or deleted by someone else.
	Missing int64
}

type appendRequest struct {
	data  []byte
	again int // how many lines it is that have been in the spool; 0 for a new one
	done  chan error
}

// maxGroup limits how many bytes are written and synced at once.
const maxGroup = 8 << 20

// Open opens the spool in cfg.Dir, with its existing files. It fails with [ErrLocked] when another process uses it,
// with [ErrForeign] when lines of another owner wait there.
func Open(cfg Config) (*Spool, error) {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 1<<30)
	cfg.SegmentBytes = cmp.Or(cfg.SegmentBytes, 64<<20)
	if cfg.Dir == "" || cfg.MaxBytes < 0 || cfg.SegmentBytes < 0 {
		return nil, fmt.Errorf("spool: %w: a directory is required, and sizes must be positive", driver.ErrInvalid)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("spool: %w: choose a writable directory with WithSpool or ?x-spool=", err)
	}
	lock := flock.New(filepath.Join(cfg.Dir, lockName))
	locked, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("spool: lock %s: %w", cfg.Dir, err)
	}
	if !locked {
		return nil, fmt.Errorf("spool %s: %w", cfg.Dir, ErrLocked)
	}
	waiting, highest, err := readDir(cfg.Dir)
	if err == nil {
		err = cfg.claim(waiting)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s := &Spool{
		cfg: cfg, lock: lock, waiting: waiting, number: highest,
		appends: make(chan *appendRequest), seals: make(chan chan struct{}),
		quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	for _, seg := range waiting {
		s.bytes += seg.size
	}
	go s.write()
	return s, nil
}

// claim makes cfg.Owner the owner of the directory, unless lines of another one wait there.
func (cfg *Config) claim(waiting []*segment) error {
	path := filepath.Join(cfg.Dir, ownerName)
	owner, err := os.ReadFile(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("spool: %w", err)
	case string(owner) == cfg.Owner:
		return nil
	case len(owner) > 0 && len(waiting) > 0:
		return fmt.Errorf("spool %s: %w, %s: it imports them, or any other does once the file %s is removed", cfg.Dir,
			ErrForeign, owner, path)
	}
	_ = os.WriteFile(path, []byte(cfg.Owner), 0o600) // on a full disk it stays empty, which is no reason not to start
	return nil
}

// OpenSlot opens the first numbered directory below dir that no other process uses and where no lines of another owner
// wait, so that processes on one machine can start in the same directory.
func OpenSlot(dir string, cfg Config) (*Spool, error) {
	const slots = 1024
	for n := range slots {
		cfg.Dir = filepath.Join(dir, strconv.Itoa(n))
		s, err := Open(cfg)
		if !errors.Is(err, ErrLocked) && !errors.Is(err, ErrForeign) {
			return s, err
		}
	}
	return nil, fmt.Errorf("spool %s: %w: all %d places are taken", dir, ErrLocked, slots)
}

// Dir is where the spool is.
func (s *Spool) Dir() string { return s.cfg.Dir }

// DamagedFiles is the pattern of files with unreadable parts. They are kept for a person.
func (s *Spool) DamagedFiles() string { return filepath.Join(s.cfg.Dir, "*"+damagedSuffix) }

// RefusedFile is where [Spool.Refuse] puts lines.
func (s *Spool) RefusedFile() string { return filepath.Join(s.cfg.Dir, refusedName) }

// Append appends a line, which must not contain a line feed, and returns when it is durable. It fails with [ErrFull] at
// the size limit, with [ErrClosed] after Close, and with the system's error when the disk fails; then nothing is
// promised. The context only counts until the write begins.
func (s *Spool) Append(ctx context.Context, line []byte) error {
	data, err := encodeLines([][]byte{line})
	if err != nil {
		return err
	}
	return s.add(ctx, &appendRequest{data: data})
}

// Requeue durably appends lines that [Spool.Drain] has passed again, all or none, even to a full spool: they are passed
// behind the others.
func (s *Spool) Requeue(ctx context.Context, lines ...[]byte) error {
	if len(lines) == 0 {
		return nil
	}
	data, err := encodeLines(lines)
	if err != nil {
		return err
	}
	return s.add(ctx, &appendRequest{data: data, again: len(lines)})
}

func (s *Spool) add(ctx context.Context, r *appendRequest) error {
	r.done = make(chan error, 1)
	select {
	case s.appends <- r:
		return <-r.done
	case <-ctx.Done():
		return fmt.Errorf("spool: %w", ctx.Err())
	case <-s.stopped:
		return fmt.Errorf("spool: %w", ErrClosed)
	}
}

// Stats returns the state of the spool.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Bytes, stats.MaxBytes, stats.OldestSince = s.bytes, s.cfg.MaxBytes, s.begun
	if len(s.waiting) > 0 {
		stats.OldestSince = s.waiting[0].since
	}
	return stats
}

// Empty reports whether nothing is waiting.
func (s *Spool) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes == 0
}

// Close finishes the appends in flight, and unlocks the spool. Waiting lines stay on disk. It may be called twice.
func (s *Spool) Close() error {
	s.closeOnce.Do(func() {
		close(s.quit)
		<-s.stopped
		s.draining.Lock()
		defer s.draining.Unlock()
		s.closeErr = s.lock.Close()
	})
	return s.closeErr
}

// write is the goroutine that owns the open file, so that no segment is sealed during a write. One sync serves all
// callers that arrived during the previous one.
func (s *Spool) write() {
	defer close(s.stopped)
	for {
		select {
		case r := <-s.appends:
			s.commit(s.gather(r))
		case sealed := <-s.seals:
			s.seal()
			close(sealed)
		case <-s.quit:
			s.seal()
			return
		}
	}
}

// gather adds the callers that are already waiting to the first.
func (s *Spool) gather(first *appendRequest) []*appendRequest {
	group, size := []*appendRequest{first}, len(first.data)
	for size < maxGroup {
		select {
		case r := <-s.appends:
			group = append(group, r)
			size += len(r.data)
		default:
			return group
		}
	}
	return group
}

// commit writes a group and notifies its callers. A segment on which anything failed is never written again: after a
// failed sync the system may have dropped the pages and let the next sync succeed. The group then goes into a new
// segment, once.
func (s *Spool) commit(group []*appendRequest) {
	group = s.refuseOverflow(group)
	if len(group) == 0 {
		return
	}
	var buffer []byte
	for _, r := range group {
		buffer = append(buffer, r.data...)
	}
	first := s.append(buffer)
	err := first
	if first != nil {
		if err = s.append(buffer); err != nil {
			err = &fileError{errors.Join(first, err)}
		}
	}
	s.mu.Lock()
	for _, r := range group {
		switch {
		case err != nil:
		case r.again > 0:
			s.aside += int64(r.again)
		default:
			s.stats.Appended++
		}
		r.done <- err
	}
	s.mu.Unlock()
}

// refuseOverflow fails requests that would exceed the size limit, and returns the others.
func (s *Spool) refuseOverflow(group []*appendRequest) []*appendRequest {
	s.mu.Lock()
	free := s.cfg.MaxBytes - s.bytes
	s.mu.Unlock()
	fitting := group[:0]
	for _, r := range group {
		if size := int64(len(r.data)); size <= free || r.again > 0 {
			free -= size
			fitting = append(fitting, r)
			continue
		}
		r.done <- fmt.Errorf("spool %s: %w: %d bytes wait for the store", s.cfg.Dir, ErrFull, s.cfg.MaxBytes-free)
	}
	return fitting
}

// append writes and syncs; on an error it abandons the segment.
func (s *Spool) append(buffer []byte) error {
	if s.current == nil {
		s.number++
		file, err := createSegment(s.cfg.Dir, s.number)
		if err != nil {
			return err
		}
		s.file = file
		s.current = &segment{path: filepath.Join(s.cfg.Dir, segmentName(s.number))}
	}
	_, err := s.file.Write(buffer)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		s.abandon()
		return fmt.Errorf("spool: %w", err)
	}
	s.mu.Lock()
	if s.current.size == 0 {
		s.begun = time.Now()
	}
	s.bytes += int64(len(buffer))
	s.mu.Unlock()
	s.current.size += int64(len(buffer))
	if s.current.size >= s.cfg.SegmentBytes {
		s.seal()
	}
	return nil
}

// abandon gives up the open segment after an error. If Append has accepted lines in it, it waits for import like any
// other: its complete lines are good, the torn end is skipped. Otherwise it is removed, which frees space on a full
// disk.
func (s *Spool) abandon() {
	if s.current.size > 0 {
		s.seal()
		return
	}
	_ = s.file.Close()
	_ = os.Remove(s.current.path) // a file that stays is imported at the next start, which is harmless
	s.file, s.current = nil, nil
}

// seal closes the open segment and queues it for import.
func (s *Spool) seal() {
	if s.current == nil {
		return
	}
	_ = s.file.Close() // everything that Append has accepted is synced
	s.mu.Lock()
	s.current.since = s.begun
	s.waiting, s.begun = append(s.waiting, s.current), time.Time{}
	s.mu.Unlock()
	s.file, s.current = nil, nil
}
