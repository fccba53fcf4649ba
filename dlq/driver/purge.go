package driver

import (
	"cmp"
	"fmt"
	"time"
)

// Purge removes old closed entries from a [Store].
type Purge struct {
	// Statuses are RESOLVED, DISCARDED or both. Defaults to RESOLVED: entries that wait for a person are never purged,
	// and discarded ones only on request.
	Statuses []Status
	// ClosedBefore selects entries that were closed before it. Required.
	ClosedBefore time.Time
	// SkipArchive removes without a copy. By default each entry, body included, is copied to the archive in the
	// transaction that removes it.
	SkipArchive bool
	// Limit is the maximum number of entries in one call, and one transaction. Defaults to 1,000.
	Limit int
	// Actor is who purges. Required. Note explains why. At is when. Required.
	Actor, Note string
	At          time.Time
}

// Resolve fills in the defaults, and reports faults as [ErrInvalid].
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
	switch p.Limit = cmp.Or(p.Limit, MaxPage); {
	case p.Limit < 1 || p.Limit > MaxPage:
		return p, fmt.Errorf("%w: purge limit %d: from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	case p.ClosedBefore.IsZero():
		return p, fmt.Errorf("%w: purge without ClosedBefore", ErrInvalid)
	case p.Actor == "" || p.At.IsZero():
		return p, fmt.Errorf("%w: purge without an actor or a time", ErrInvalid)
	}
	return p, nil
}
