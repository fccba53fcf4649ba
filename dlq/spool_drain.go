package dlq

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of what Drain hands over at once.
const (
	maxBatchLines = 500
	maxBatchBytes = 4 << 20
)

// Drain hands everything that waits to take, in batches, in the order in which it was appended, and removes the files that were
// taken. When take fails Drain stops and returns its error; the next Drain continues with the same batch. A crash lets a file be
// handed over once more, so take must be idempotent. Lines that came while it ran are drained too. One Drain runs at a time.
func (s *Spool) Drain(ctx context.Context, take func(ctx context.Context, lines [][]byte) error) error {
	s.draining.Lock()
	defer s.draining.Unlock()
	for {
		seg := s.oldest()
		if seg == nil {
			s.sealNow()
			if seg = s.oldest(); seg == nil {
				return nil
			}
		}
		if err := s.drainSegment(ctx, seg, take); err != nil {
			return err
		}
	}
}

func (s *Spool) oldest() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil
	}
	return s.waiting[0]
}

// sealNow has the writer close the open segment, so that it can be read to its end.
func (s *Spool) sealNow() {
	sealed := make(chan struct{})
	select {
	case s.seals <- sealed:
		<-sealed
	case <-s.stopped:
	}
}

func (s *Spool) drainSegment(ctx context.Context, seg *segment, take func(context.Context, [][]byte) error) error {
	f, err := os.Open(seg.path)
	if err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	defer f.Close()
	if _, err := f.Seek(seg.imported, io.SeekStart); err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	var read int64
	buffered := bufio.NewReaderSize(f, 256<<10)
	lines := &lineReader{read: func() ([]byte, error) {
		line, err := buffered.ReadBytes('\n')
		read += int64(len(line))
		return line, err
	}}
	start := seg.imported
	for {
		batch, err := readBatch(lines)
		if err != nil {
			return fmt.Errorf("dlq: spool: read %s: %w", seg.path, err)
		}
		if len(batch) == 0 {
			break
		}
		if err := take(ctx, batch); err != nil {
			return err
		}
		seg.imported = start + read
		seg.damaged += lines.bad
		lines.bad = 0
		s.mu.Lock()
		s.stats.Imported += int64(len(batch))
		s.mu.Unlock()
	}
	seg.damaged += lines.bad
	return s.finish(seg)
}

func readBatch(lines *lineReader) (batch [][]byte, err error) {
	size := 0
	for len(batch) < maxBatchLines && size < maxBatchBytes {
		data, err := lines.next()
		if errors.Is(err, io.EOF) {
			return batch, nil
		}
		if err != nil {
			return nil, err
		}
		for _, d := range data {
			batch = append(batch, d)
			size += len(d)
		}
	}
	return batch, nil
}

// finish takes a segment out of the spool. The name changes first, durably: a crash before the removal must not import it again.
// A segment with damaged lines is kept under another name, for a person.
func (s *Spool) finish(seg *segment) error {
	base := strings.TrimSuffix(seg.path, segmentSuffix)
	target := base + doneSuffix
	if seg.damaged > 0 {
		target = base + damagedSuffix
	}
	err := os.Rename(seg.path, target)
	if err == nil {
		err = syncDir(s.cfg.Dir)
	}
	if err == nil && seg.damaged == 0 {
		err = os.Remove(target)
	}
	if err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = s.waiting[1:]
	s.bytes -= seg.size
	s.stats.Damaged += int64(seg.damaged)
	return nil
}

// refuse puts a line aside that the store will never take, durably, in the same format.
func (s *Spool) refuse(data []byte) error {
	line, err := encodeLine(data)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.cfg.Dir, refusedName), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	_, err = f.Write(line)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close(), syncDir(s.cfg.Dir)); err != nil {
		return fmt.Errorf("dlq: spool: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Refused++
	return nil
}
