package sqlqueue

import (
	"context"
	"time"
)

// Another session may have locked a row: an operator's SELECT ... FOR UPDATE, a dump, a stuck transaction. A statement
// for many rows would wait for it while their leases expire, so such rows are left out and retried separately.

// lockCheck is when to check rows for other sessions' locks.
type lockCheck int

const (
	neverLocked lockCheck = iota // a writer has the whole database
	lookFirst                    // a waiting statement cannot be interrupted
	lookLate                     // after a statement that has waited, which the driver interrupts at the server
)

// Bounds of a statement that has not checked for locks, and of the time in which every statement checks after one was
// found.
const (
	longestWait = 2 * time.Second
	carefulTime = time.Minute
)

// change runs a statement on rows, and needs to know which were left out.
type change func(ctx context.Context, rows, locked []leased) error

// changeFree runs a change on those of rows that no other session has locked, and returns the others.
func (s *store) changeFree(ctx context.Context, rows []leased, change change) (locked []leased, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.lease)
	defer cancel()
	habit := s.locks()
	if habit == neverLocked {
		return nil, change(ctx, rows, nil)
	}
	if habit == lookLate && time.Now().UnixNano() > s.careful.Load() {
		wait, cancel := context.WithTimeout(ctx, min(s.lease/4, longestWait))
		err := change(wait, rows, nil)
		waited := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !waited && !s.name().Locked(err) {
			return nil, err
		}
		s.careful.Store(time.Now().Add(carefulTime).UnixNano())
	}
	free, locked, err := s.unlocked(ctx, rows)
	if err == nil && len(free) > 0 {
		err = change(ctx, free, locked)
	}
	return locked, err
}

// unlocked splits rows into those that can be changed at once, or are gone, and those that another session has locked.
// The locks are not kept.
func (s *store) unlocked(ctx context.Context, rows []leased) (free, locked []leased, err error) {
	if s.locks() == neverLocked || len(rows) == 0 {
		return rows, nil, nil
	}
	where, args := s.byIDs(idsOf(rows))
	query := "SELECT id FROM " + s.byID("redrive_queue_messages") + where
	ids, err := queryInts(ctx, s.db, query+" FOR UPDATE SKIP LOCKED", args...)
	if err != nil || len(ids) == len(rows) {
		return rows, nil, err
	}
	there, err := queryInts(ctx, s.db, query, args...)
	if err != nil {
		return nil, nil, err
	}
	lockable, known := set(ids), set(there)
	for _, r := range rows {
		if known[r.id] && !lockable[r.id] {
			locked = append(locked, r)
		} else {
			free = append(free, r)
		}
	}
	return free, locked, nil
}
