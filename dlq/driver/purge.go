package driver

import (
	"fmt"
	"time"
)

// Purge asks a [Store] to remove entries that are closed and old.
type Purge struct {
	// Statuses are RESOLVED, DISCARDED or both. Defaults to RESOLVED: nothing that waits for a person is ever purged,
	// and what was discarded only when asked for.
	Statuses []Status
	// ClosedBefore picks entries that were closed before it. Required.
	ClosedBefore time.Time
	// SkipArchive removes without a copy. The default copies each entry, body and all, to the archive in the
	// transaction that removes it.
	SkipArchive bool
	// Limit is at most how many entries. Defaults to 1,000 in one call; what is removed in one transaction.
	Limit int
	// Actor is who does it. Required. Note explains why. At is when. Required.
	Actor, Note string
	At          time.Time
}

// Resolve fills the defaults in, and reports what is wrong as [ErrInvalid].
func (p Purge) Resolve() (Purge, error) {
	if len(p.Statuses) == 0 {
		p.Statuses = []Status{Resolved}
	}
	for _, s := range p.Statuses {
		if s != Resolved && s != Discarded {
			return p, fmt.Errorf("%w: purge removes %s and %s entries, not %q: resolve or discard them first",
				ErrInvalid, Resolved, Discarded, s)
		}
	}
	if p.Limit == 0 {
		p.Limit = MaxPage
	}
	switch {
	case p.Limit < 1 || p.Limit > MaxPage:
		return p, fmt.Errorf("%w: purge limit %d: from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	case p.ClosedBefore.IsZero():
		return p, fmt.Errorf("%w: purge without ClosedBefore: say how old", ErrInvalid)
	case p.Actor == "" || p.At.IsZero():
		return p, fmt.Errorf("%w: purge without an actor or a time", ErrInvalid)
	}
	return p, nil
}
