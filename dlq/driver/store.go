package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/scheme"
)

// Reader is the part of a [Store] that reads, which a Manager of package dlq has, too.
type Reader interface {
	// Get returns an entry with the body that a redrive would send. The error wraps ErrNotFound if it does not exist.
	Get(ctx context.Context, id int64) (*Entry, error)
	// Body returns one revision of an entry's body: 0 is the original, Entry.Revision the one that a redrive sends. The
	// error wraps ErrNotFound if it does not exist.
	Body(ctx context.Context, id int64, revision int) (*Body, error)
	// List returns a page of the entries that the filter selects, without their bodies.
	List(ctx context.Context, f Filter, p Page) (Listing, error)
	// Count returns how many entries the filter selects, counting no further than limit; 0 means no limit.
	Count(ctx context.Context, f Filter, limit int64) (int64, error)
	// Groups returns the causes, those with the most entries first.
	Groups(ctx context.Context, q GroupQuery) ([]Group, error)
	// Stats returns the numbers of a dashboard without scanning the entries.
	Stats(ctx context.Context, q StatsQuery) (Stats, error)
	// Ping reports whether the store can take a dead letter now.
	Ping(ctx context.Context) error
}

// Store keeps dead letters. Implementations are safe for concurrent use by many goroutines and many processes, and pass
// the suite in dlq/dlqtest. Their errors wrap [ErrNotFound], [ErrConflict] and [ErrInvalid] where these apply; any
// other error means that the store could not be reached or did not answer, and that the call may be repeated.
//
// Optional abilities of a store are separate interfaces, found by [As], because a store may be wrapped.
type Store interface {
	Reader
	// Put stores dead letters and returns when they are durable, with one receipt for each, in their order. It is
	// idempotent: an entry whose Key exists is not stored again, and one with RedriveOf updates its entry (see
	// [Entry.Die]). After an error none, some or all may have been stored; repeat the call. Only if it wraps ErrInvalid
	// will the store never accept one of them, and the spool sets that one aside for a person. Concurrent calls may be
	// combined into one write. The entries are neither changed nor retained.
	Put(ctx context.Context, letters ...*Entry) ([]Receipt, error)
	// Change applies one action to some entries, each by compare-and-set in the state machine of [Change.Apply], and
	// records it in the audit log in the same transaction. The results are in the order of the ids. An error concerns the
	// whole call: nothing was changed, or that is not known.
	Change(ctx context.Context, c Change) ([]Result, error)
	// Revise gives an entry a new revision of its body, by compare-and-set and with a record in the audit log; earlier
	// revisions remain. The error wraps ErrNotFound, ErrConflict or ErrInvalid when nothing was changed.
	Revise(ctx context.Context, r Revision) (*Entry, error)
	// Import stores entries unchanged, with their state, all revisions of their bodies and new ids, unless their Key
	// exists, also in the archive: then the Outcome is Seen and nothing is changed. One transaction, all or none.
	Import(ctx context.Context, by By, at time.Time, letters ...Exported) ([]Receipt, error)
	// Purge removes closed entries, and returns how many. Call it again while it returns Purge.Limit.
	Purge(ctx context.Context, p Purge) (int, error)
	// Audit returns audit records, newest first unless the page asks for the oldest first, and the cursor of the next
	// page.
	Audit(ctx context.Context, f AuditFilter, p Page) ([]AuditRecord, string, error)
	// Recount rebuilds the statistics from all entries, after the tables were changed by hand.
	Recount(ctx context.Context) error
	// Close finishes pending work and closes the store. Later calls return ErrClosed. It may be called more than once.
	Close() error
}

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

// What the methods of a [Store] take and return, where it has a JSON form; its parts are in package wire.
type (
	// Filter selects entries.
	Filter = wire.Filter
	// Page selects a part of a listing.
	Page = wire.Page
	// Status is the state of a dead letter.
	Status = wire.Status
	// Action is an operation on an entry.
	Action = wire.Action
	// AuditRecord is one record of the audit log.
	AuditRecord = wire.AuditRecord
	// AuditFilter selects audit records.
	AuditFilter = wire.AuditFilter
	// Group is a cause: all entries with the same fingerprint.
	Group = wire.Group
	// GroupQuery selects groups.
	GroupQuery = wire.GroupQuery
	// Counts are numbers of entries by status.
	Counts = wire.Counts
	// Stats are the numbers of a dashboard.
	Stats = wire.Stats
	// StatsQuery selects statistics.
	StatsQuery = wire.StatsQuery
	// ConflictError is the error for the slower of two callers.
	ConflictError = wire.Conflict
)

// The constants of these types.
const (
	Pending   = wire.Pending
	Retrying  = wire.Retrying
	Parked    = wire.Parked
	Resolved  = wire.Resolved
	Discarded = wire.Discarded

	NewestFirst = wire.NewestFirst
	OldestFirst = wire.OldestFirst
	StoredFirst = wire.StoredFirst
	StoredLast  = wire.StoredLast
	MaxPage     = wire.MaxPage
)

// The errors of a [Store].
var (
	ErrNotFound    = wire.ErrNotFound
	ErrConflict    = wire.ErrConflict
	ErrInvalid     = wire.ErrInvalid
	ErrUnavailable = wire.ErrUnavailable
	ErrForbidden   = wire.ErrForbidden
	ErrClosed      = wire.ErrClosed
)

// Listing is a page of entries. Pages are found by their position in the order, not by counting: deep pages cost the
// same as the first, and new entries shift nothing.
type Listing struct {
	// Entries are without Body.
	Entries []Entry
	// Next continues the listing; empty on the last page.
	Next string
}

// By is who makes a change and why, for the audit log.
type By struct {
	// Actor is the authenticated user's name, not one from the request. Required.
	Actor string
	// Note is why.
	Note string
	// Version, unless 0, must be the entry's, as the caller read it: the change is refused if someone was faster.
	Version int64
	// ResolvedBy is who took care of a resolved entry, if that was not the actor: an unverified name. The audit log has
	// both.
	ResolvedBy string
}

// FoldAudit joins the records of a run that have the same content, in place of the newest. Outcomes are reported by
// consumers, which do not know the run: consecutive ones are joined.
func FoldAudit(records []AuditRecord) []AuditRecord {
	type key struct {
		run, actor string
		action     Action
		to         Status
	}
	rows, at := make([]AuditRecord, 0, len(records)), map[key]int{}
	for i := range records {
		r := records[i]
		k := key{r.Run, r.Actor, r.Action, r.To}
		n, there := at[k]
		next := n == len(rows)-1 && (r.Action == ActionSucceed || r.Action == ActionDie)
		if there && r.EntryID != 0 && (r.Run != "" || next) {
			row := &rows[n]
			if len(row.Entries) == 0 {
				row.Entries = []int64{row.EntryID}
			}
			row.Entries, row.Since = append(row.Entries, r.EntryID), r.At
			continue
		}
		if r.EntryID != 0 {
			at[k] = len(rows)
		}
		rows = append(rows, r)
	}
	return rows
}

// DefaultURL is what [Open] opens if the URL is empty: a SQLite file in the working directory.
const DefaultURL = "sqlite:dead-letters.db"

// Driver opens stores for the URL schemes that it is registered for.
type Driver interface {
	// OpenStore opens the store that u names and brings its schema up to date. It refuses URL parameters that it does
	// not know, and shows no password in its errors.
	OpenStore(ctx context.Context, u *url.URL) (Store, error)
}

// Mux opens stores by the scheme of their URL. The zero Mux is ready; it is safe for concurrent use.
type Mux struct {
	mu      sync.RWMutex
	drivers map[string]Driver
}

// DefaultMux is the registry of [Register].
var DefaultMux Mux

// Register makes a driver available to [Open] under a URL scheme. It panics when the scheme is taken or d is nil, which
// are programming errors. Driver packages call it from init.
func Register(scheme string, d Driver) { DefaultMux.Register(scheme, d) }

// Schemes lists what [Open] can open, sorted.
func Schemes() []string { return DefaultMux.Schemes() }

// Register makes a driver available under a URL scheme. It panics when the scheme is taken, empty, or d is nil.
func (m *Mux) Register(scheme string, d Driver) {
	scheme = strings.ToLower(scheme)
	m.mu.Lock()
	defer m.mu.Unlock()
	if scheme == "" || d == nil {
		panic("dlq/driver: Register with an empty scheme or a nil driver")
	}
	if _, taken := m.drivers[scheme]; taken {
		panic("dlq/driver: Register called twice for scheme " + scheme)
	}
	if m.drivers == nil {
		m.drivers = make(map[string]Driver)
	}
	m.drivers[scheme] = d
}

// Schemes lists the registered schemes, sorted.
func (m *Mux) Schemes() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Sorted(maps.Keys(m.drivers))
}

// OpenStore opens the store that the URL names. A text without a scheme is the path of a SQLite file; an empty one is
// [DefaultURL]. The error for an unknown scheme lists the known ones and the import that is missing.
func (m *Mux) OpenStore(ctx context.Context, rawURL string) (Store, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	m.mu.RLock()
	d := m.drivers[u.Scheme]
	m.mu.RUnlock()
	if d == nil {
		return nil, m.unknown(u.Scheme)
	}
	return d.OpenStore(ctx, u)
}

func (m *Mux) unknown(name string) error {
	here := "none is registered"
	if schemes := m.Schemes(); len(schemes) > 0 {
		here = "registered: " + strings.Join(schemes, ", ")
	}
	hint := "forgotten import?"
	if slices.Contains([]string{"sqlite", "postgres", "mysql"}, scheme.Canonical(name)) {
		hint += ` add _ "github.com/redrive-go/redrive/dlq/sqlstore"`
	}
	return fmt.Errorf("dlq: open: unknown scheme %q (%s); %s", name, here, hint)
}

// dsn matches what PostgreSQL's and MySQL's drivers accept apart from URLs. As the path of a SQLite file it would show
// its password in a directory.
var dsn = regexp.MustCompile(`(?i)^[^:]*\b(password|host|user|dbname)\s*=|@(tcp|unix)?\(`)

// ParseURL reads a store's URL as [Mux.OpenStore] does. Its errors never quote the URL: it may carry a password.
func ParseURL(rawURL string) (*url.URL, error) {
	rawURL = cmp.Or(rawURL, DefaultURL)
	if !strings.Contains(rawURL, "://") && dsn.MatchString(rawURL) {
		return nil, errors.New("dlq: open: this is a database driver's connection string; write " +
			"postgres://user@host/database, mysql://user@host/database or sqlite:FILE")
	}
	if scheme, _, found := strings.Cut(rawURL, ":"); !found || !isScheme(scheme) {
		return &url.URL{Scheme: "sqlite", Opaque: rawURL}, nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		if parse, ok := errors.AsType[*url.Error](err); ok {
			err = parse.Err // without the URL that url.Error quotes
		}
		if _, escape := errors.AsType[url.EscapeError](err); escape || strings.Contains(err.Error(), "port") {
			// Both quote part of the URL, which is the password if that contains an unescaped % or :.
			err = errors.New(`a character in the user name or password is not percent-encoded (% as %25, @ as %40, : as %3A, ` +
				`/ as %2F)`)
		}
		return nil, fmt.Errorf("dlq: open: not a URL: %w", err)
	}
	return u, nil
}

// isScheme reports whether the text before a colon is a scheme; a single letter is a Windows drive.
func isScheme(s string) bool {
	if len(s) < 2 {
		return false
	}
	for i, r := range s {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", r)) {
			return false
		}
	}
	return true
}
