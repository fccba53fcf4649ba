package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Limits of a batch of Drain.
const (
	maxBatchLines = 500
	maxBatchBytes = 4 << 20
)

// Drain passes all waiting lines to take, in batches, in the order in which they were appended, and removes the
// finished files. When take fails, Drain stops and returns its error; the next Drain continues with the same batch.
// After a crash the lines of a file may be passed again, so take must be idempotent. Lines that arrive while it runs
// are also drained. One Drain runs at a time.
//
// A missing file is counted, and drained when it is back. An unreadable one, or one whose lines Refuse or Requeue could
// not write, does not stop those after it, but is in the error.
func (s *Spool) Drain(ctx context.Context, take func(ctx context.Context, lines [][]byte) error) error {
	s.draining.Lock()
	defer s.draining.Unlock()
	s.findMissing()
	var failed []error
	tried := map[*segment]bool{}
	for {
		seg := s.oldest(tried)
		if seg == nil {
			s.Seal()
			if seg = s.oldest(tried); seg == nil {
				return errors.Join(failed...)
			}
		}
		tried[seg] = true
		if err := s.drainSegment(ctx, seg, take); err != nil {
			failed = append(failed, err)
			if _, ofFile := errors.AsType[*fileError](err); !ofFile {
				return errors.Join(failed...)
			}
		}
	}
}

// fileError is an error of the spool's files. Refuse and Requeue also return it, to take.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// oldest is the first segment that was not tried yet.
func (s *Spool) oldest(tried map[*segment]bool) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.waiting {
		if !tried[seg] {
			return seg
		}
	}
	return nil
}

// setMissing takes a segment whose file is missing out of the waiting ones.
func (s *Spool) setMissing(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(seg)
	s.missing = append(s.missing, seg)
	s.stats.Missing++
}

// remove removes a segment from the waiting ones. The caller holds mu.
func (s *Spool) remove(seg *segment) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w *segment) bool { return w == seg })
	s.bytes -= seg.size
}

// findMissing adds segments whose files are back to the waiting ones, as they were when they went missing.
func (s *Spool) findMissing() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = slices.DeleteFunc(s.missing, func(seg *segment) bool {
		if _, err := os.Stat(seg.path); err != nil {
			return false
		}
		s.waiting = append(s.waiting, seg)
		s.bytes += seg.size
		return true
	})
}

// Seal makes the writer close the open segment, so that it can be read to its end.
func (s *Spool) Seal() {
	sealed := make(chan struct{})
	select {
	case s.seals <- sealed:
		<-sealed
	case <-s.stopped:
	}
}

func (s *Spool) drainSegment(ctx context.Context, seg *segment, take func(context.Context, [][]byte) error) error {
	f, err := os.Open(seg.path)
	if errors.Is(err, fs.ErrNotExist) {
		s.setMissing(seg)
		return nil
	}
	if err != nil {
		return &fileError{fmt.Errorf("spool: %w", err)}
	}
	defer f.Close()
	if _, err := f.Seek(seg.imported, io.SeekStart); err != nil {
		return &fileError{fmt.Errorf("spool: %w", err)}
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
			return &fileError{fmt.Errorf("spool: read %s: %w", seg.path, err)}
		}
		if len(batch) == 0 {
			break
		}
		err = take(ctx, batch)
		s.mu.Lock()
		if err == nil {
			s.stats.Imported += int64(len(batch)) - s.aside
		}
		s.aside = 0 // also when the batch will be repeated
		s.mu.Unlock()
		if err != nil {
			return err
		}
		seg.imported = start + read
		seg.damaged += lines.bad
		lines.bad = 0
	}
	seg.damaged += lines.bad
	if len(lines.torn) > 0 { // kept in a file next to it, for a person
		kept := strings.TrimSuffix(seg.path, segmentSuffix) + tornSuffix
		if err := writeFile(kept, os.O_TRUNC, lines.torn); err != nil {
			return &fileError{err}
		}
		seg.torn = true
	}
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

// finish removes a segment from the spool. It is durably renamed first: after a crash before the removal it must not be
// imported again. A segment with damaged lines is kept under another name, for a person.
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
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a file that was moved away meanwhile has been read to its end
		return &fileError{fmt.Errorf("spool: %w", err)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(seg)
	if seg.torn {
		s.stats.Torn++
	}
	s.stats.Damaged += int64(seg.damaged)
	return nil
}

// Refuse durably sets aside lines that the store will never accept, in a file of the same format.
func (s *Spool) Refuse(lines ...[]byte) error {
	if len(lines) == 0 {
		return nil
	}
	data, err := encodeLines(lines)
	if err == nil {
		err = writeFile(s.RefusedFile(), os.O_APPEND, data)
	}
	if err != nil {
		return &fileError{err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Refused += int64(len(lines))
	s.aside += int64(len(lines))
	return nil
}
