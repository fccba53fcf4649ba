package dlq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// SpoolConfig says where a spool is and how large it may grow.
type SpoolConfig struct {
	// Dir is the directory. Required. It is made, for this user only, when it is not there.
	Dir string
	// MaxBytes bounds what waits on disk. Defaults to 1 GiB.
	MaxBytes int64
	// SegmentBytes is when a file is closed and the next one begun. Defaults to 64 MiB.
	SegmentBytes int64
}

// Spool keeps lines in local files until they are drained. A line that Append has taken survives a crash and a power loss: it was
// written and synced, together with those of concurrent callers. A Spool is safe for concurrent use within its process, and locked
// against any other.
type Spool struct {
	cfg  SpoolConfig
	lock *os.File

	appends chan *appendRequest
	seals   chan chan struct{}
	quit    chan struct{}
	stopped chan struct{}

	closeOnce sync.Once
	closeErr  error
	draining  sync.Mutex // one drain at a time

	mu      sync.Mutex // guards what follows
	waiting []*segment // closed segments, the oldest first
	bytes   int64      // of all segments, the open one too
	stats   SpoolStats

	// Of the writer goroutine alone.
	file    *os.File
	current *segment
	number  int
}

// SpoolStats says how a spool is.
type SpoolStats struct {
	// Bytes wait on disk, of at most MaxBytes.
	Bytes, MaxBytes int64
	// OldestSince is when the oldest waiting file was last written; zero when nothing waits.
	OldestSince time.Time
	// Appended, Imported, Damaged and Refused count lines since the start: taken, delivered to the store, found unreadable, and put
	// aside because the store would never take them.
	Appended, Imported, Damaged, Refused int64
	// StoreDown says that the store does not answer and everything goes to the spool; LastError is what it said last.
	StoreDown bool
	LastError error
}

type appendRequest struct {
	line []byte
	done chan error
}

// maxGroup bounds how many bytes are written and synced at once.
const maxGroup = 8 << 20

// OpenSpool opens the spool in cfg.Dir, with the files that are there. It fails with [ErrSpoolLocked] when another process has it.
func OpenSpool(cfg SpoolConfig) (*Spool, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 1 << 30
	}
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = 64 << 20
	}
	if cfg.Dir == "" || cfg.MaxBytes < 0 || cfg.SegmentBytes < 0 {
		return nil, fmt.Errorf("dlq: spool: %w: a directory is required, and sizes must be positive", ErrInvalid)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("dlq: spool: %w: name a directory that can be written, with WithSpool or ?x-spool=", err)
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("dlq: spool: %w", err)
	}
	if err := lockFile(lock); err != nil {
		return nil, errors.Join(fmt.Errorf("dlq: spool %s: %w", cfg.Dir, err), lock.Close())
	}
	waiting, highest, err := readDir(cfg.Dir)
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

// openSpoolSlot opens the first numbered directory below dir that no other process has: two replicas on one machine, started in
// the same directory, do not get in each other's way.
func openSpoolSlot(dir string, cfg SpoolConfig) (*Spool, error) {
	const slots = 1024
	for n := range slots {
		cfg.Dir = filepath.Join(dir, strconv.Itoa(n))
		s, err := OpenSpool(cfg)
		if !errors.Is(err, ErrSpoolLocked) {
			return s, err
		}
	}
	return nil, fmt.Errorf("dlq: spool %s: %w: all %d places are taken", dir, ErrSpoolLocked, slots)
}

// Dir is where the spool is.
func (s *Spool) Dir() string { return s.cfg.Dir }

// Append takes data, which must not hold a line feed, and returns when it is durable. It fails with [ErrSpoolFull] at the size
// bound, with [ErrClosed] after Close, and with the system's error when the disk does not take it; then nothing is promised. The
// context is looked at only until the write begins.
func (s *Spool) Append(ctx context.Context, data []byte) error {
	line, err := encodeLine(data)
	if err != nil {
		return err
	}
	r := &appendRequest{line: line, done: make(chan error, 1)}
	select {
	case s.appends <- r:
		return <-r.done
	case <-ctx.Done():
		return fmt.Errorf("dlq: spool: %w", ctx.Err())
	case <-s.stopped:
		return fmt.Errorf("dlq: spool: %w", ErrClosed)
	}
}

// Stats says how the spool is.
func (s *Spool) Stats() SpoolStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Bytes, stats.MaxBytes = s.bytes, s.cfg.MaxBytes
	if len(s.waiting) > 0 {
		if info, err := os.Stat(s.waiting[0].path); err == nil {
			stats.OldestSince = info.ModTime()
		}
	}
	return stats
}

// Empty reports whether nothing waits.
func (s *Spool) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes == 0
}

// Close finishes the appends under way, and unlocks the spool. What waits stays on disk. Closing twice is fine.
func (s *Spool) Close() error {
	s.closeOnce.Do(func() {
		close(s.quit)
		<-s.stopped
		s.draining.Lock()
		defer s.draining.Unlock()
		s.closeErr = errors.Join(unlockFile(s.lock), s.lock.Close())
	})
	return s.closeErr
}
