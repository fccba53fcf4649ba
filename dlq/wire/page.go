package wire

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"
)

// MaxPage is the maximum number of entries in a page.
const MaxPage = 1000

// Order is the order of a listing: by CreatedAt and ID, or by ID alone, which is the order of storing. Entries stored
// late, from a spool or an export, are far back in the first and at the end of the second.
type Order string

const (
	// NewestFirst is the default.
	NewestFirst Order = "newest"
	// OldestFirst is the order in which messages died.
	OldestFirst Order = "oldest"
	// StoredFirst is the order of storing, for readers that follow the store.
	StoredFirst Order = "stored-first"
	// StoredLast is the reverse of StoredFirst.
	StoredLast Order = "stored-last"
)

// orders are all orders, with their letters in cursors.
var orders = map[Order]byte{NewestFirst: 'n', OldestFirst: 'o', StoredFirst: 's', StoredLast: 'l'}

// Ascending reports whether the earliest comes first.
func (o Order) Ascending() bool { return o == OldestFirst || o == StoredFirst }

// ByID reports whether it is the order of storing, in either direction.
func (o Order) ByID() bool { return o == StoredFirst || o == StoredLast }

// Page selects a part of a listing. The zero Page is the first 50 entries, newest first.
type Page struct {
	Limit int   `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"Maximum number."`
	Order Order `query:"order" enum:"newest,oldest,stored-first,stored-last" default:"newest"`
	// After is the Next of the previous page. Empty for the first page.
	After string `query:"cursor" maxLength:"200" doc:"The next of the previous page."`
}

// Cursor is a position in a listing: after the entry with this CreatedAt and ID.
type Cursor struct {
	Order Order
	At    time.Time
	ID    int64
}

// Resolve fills in the page's defaults and reads its cursor, which is nil for the first page. Faults are reported as
// [ErrInvalid].
func (p Page) Resolve() (Page, *Cursor, error) {
	p.Limit, p.Order = cmp.Or(p.Limit, 50), cmp.Or(p.Order, NewestFirst)
	if p.Limit < 1 || p.Limit > MaxPage {
		return p, nil, fmt.Errorf("%w: page limit %d: from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	}
	if orders[p.Order] == 0 {
		return p, nil, fmt.Errorf("%w: unknown order %q: %s, %s, %s or %s", ErrInvalid, p.Order,
			NewestFirst, OldestFirst, StoredFirst, StoredLast)
	}
	if p.After == "" {
		return p, nil, nil
	}
	c, err := parseCursor(p.After)
	if err != nil {
		return p, nil, err
	}
	if c.Order != p.Order {
		return p, nil, fmt.Errorf("%w: the cursor belongs to a listing with order %q, not %q", ErrInvalid, c.Order, p.Order)
	}
	return p, &c, nil
}

const (
	cursorVersion = 1
	cursorSize    = 1 + 1 + 8 + 8
)

// String is the cursor for [Page.After]: opaque, and safe in a URL.
func (c Cursor) String() string {
	raw := make([]byte, 0, cursorSize)
	raw = append(raw, cursorVersion, orders[cmp.Or(c.Order, NewestFirst)])
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.At.UnixMicro()))
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.ID)) //nolint:gosec // bits, read back as they are
	return base64.RawURLEncoding.EncodeToString(raw)
}

func parseCursor(text string) (Cursor, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != cursorSize || raw[0] != cursorVersion {
		return Cursor{}, fmt.Errorf("%w: cursor %.40q was not made by this store: begin with the first page", ErrInvalid,
			text)
	}
	c := Cursor{
		At: time.UnixMicro(int64(binary.BigEndian.Uint64(raw[2:]))).UTC(), //nolint:gosec // bits
		ID: int64(binary.BigEndian.Uint64(raw[10:])),                      //nolint:gosec // bits
	}
	for order, letter := range orders {
		if raw[1] == letter {
			c.Order = order
		}
	}
	if c.Order == "" || c.At.Year() < 1 || c.At.Year() > 9999 { // never made by a store
		return Cursor{}, fmt.Errorf("%w: cursor %.40q was not made by this store: begin with the first page", ErrInvalid,
			text)
	}
	return c, nil
}
