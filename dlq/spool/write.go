package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

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
	group, size := []*appendRequest{first}, len(first.line)
	for size < maxGroup {
		select {
		case r := <-s.appends:
			group = append(group, r)
			size += len(r.line)
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
		buffer = append(buffer, r.line...)
	}
	err := s.append(buffer)
	if err != nil {
		if secondErr := s.append(buffer); secondErr != nil {
			err = errors.Join(err, secondErr)
		} else {
			err = nil
		}
	}
	if err == nil {
		s.mu.Lock()
		s.stats.Appended += int64(len(group))
		s.mu.Unlock()
	}
	for _, r := range group {
		r.done <- err
	}
}

// refuseOverflow fails requests that would exceed the size limit, and returns the others.
func (s *Spool) refuseOverflow(group []*appendRequest) []*appendRequest {
	s.mu.Lock()
	free := s.cfg.MaxBytes - s.bytes
	s.mu.Unlock()
	fitting := group[:0]
	for _, r := range group {
		if size := int64(len(r.line)); size <= free {
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
	s.current.size += int64(len(buffer))
	s.mu.Lock()
	s.bytes += int64(len(buffer))
	s.mu.Unlock()
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
	s.waiting = append(s.waiting, s.current)
	s.mu.Unlock()
	s.file, s.current = nil, nil
}
