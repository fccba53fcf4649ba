package dlq

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Limits of one import transaction, and of one line.
const (
	importBatch   = 200
	importBytes   = 16 << 20
	maxExportLine = 1 << 30
)

// Export writes the entries that the filter selects, oldest first, as JSON lines: each with its state and every
// revision of its body, byte for byte. It returns how many it wrote. Entries that die during the export may or may not
// be included. The audit log is not exported.
func (m *Manager) Export(ctx context.Context, w io.Writer, f Filter) (int64, error) {
	return m.ExportRedacted(ctx, w, f, nil)
}

// ExportRedacted is Export for a caller that may not see everything: hide redacts each entry. The lines are marked, and
// Import refuses them, because the hidden values would be lost. A nil hide redacts nothing.
func (m *Manager) ExportRedacted(ctx context.Context, w io.Writer, f Filter, hide func(*wire.Letter)) (int64, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	var n int64
	var purged []int64
	defer func() {
		if len(purged) > 0 {
			m.cfg.Logger.WarnContext(ctx, "entries were purged while they were exported: they are in the archive", "count",
				len(purged), "first", purged[0])
		}
	}()
	err := m.each(ctx, f, func(e *Entry) error {
		x, err := m.exported(ctx, e)
		if errors.Is(err, errPurged) {
			purged = append(purged, e.ID)
			return nil
		}
		if err != nil {
			return err
		}
		line := x.Wire()
		if hide != nil {
			hide(line)
			line.Redacted = true
		}
		if err := encoder.Encode(line); err != nil {
			return fmt.Errorf("dlq: export entry %d: %w", e.ID, err)
		}
		n++
		return nil
	})
	if err != nil {
		return n, errors.Join(err, out.Flush())
	}
	if err := out.Flush(); err != nil {
		return n, fmt.Errorf("dlq: export: %w", err)
	}
	return n, nil
}

// errPurged means that an entry was purged between being listed and being read.
var errPurged = errors.New("purged meanwhile")

// exported reads the bodies. The entry is read again, so that it matches them. A revision missing from an existing
// entry is an error: an incomplete export must not look complete.
func (m *Manager) exported(ctx context.Context, listed *Entry) (*driver.Exported, error) {
	e, err := m.cfg.Store.Get(ctx, listed.ID)
	if errors.Is(err, ErrNotFound) {
		return nil, m.purgedOr(ctx, listed.ID,
			fmt.Errorf("dlq: export entry %d: it is listed, but cannot be read: %w", listed.ID, err))
	}
	if err != nil {
		return nil, err
	}
	x := &driver.Exported{Entry: *e}
	x.Entry.Body = nil
	for revision := 0; ; revision++ {
		body, err := m.cfg.Store.Body(ctx, e.ID, revision)
		if errors.Is(err, ErrNotFound) && revision > e.Revision {
			return x, nil
		}
		if errors.Is(err, ErrNotFound) {
			return nil, m.purgedOr(ctx, e.ID, fmt.Errorf("dlq: export entry %d: revision %d is missing: %w", e.ID, revision,
				err))
		}
		if err != nil {
			return nil, err
		}
		x.Bodies = append(x.Bodies, *body)
	}
}

// purgedOr returns errPurged when the entry is no longer listed, else the error.
func (m *Manager) purgedOr(ctx context.Context, id int64, err error) error {
	n, countErr := m.cfg.Store.Count(ctx, Filter{IDs: []int64{id}}, 1)
	if countErr != nil {
		return countErr
	}
	if n == 0 {
		return errPurged
	}
	return err
}

// each calls fn for the entries that the filter selects, oldest first, page by page. fn may change them.
func (m *Manager) each(ctx context.Context, f Filter, fn func(*Entry) error) error {
	page := Page{Limit: driver.MaxPage, Order: driver.OldestFirst}
	for {
		listing, err := m.cfg.Store.List(ctx, f, page)
		if err != nil {
			return err
		}
		for i := range listing.Entries {
			if err := fn(&listing.Entries[i]); err != nil {
				return err
			}
		}
		if page.After = listing.Next; page.After == "" {
			return nil
		}
	}
}

// Imported is the result of an import: Stored are new entries, which get new ids; Seen existed already, by their Key,
// and were not changed.
type Imported = wire.Imported

// Import stores entries written by Export, in their exported state. An entry that exists already, by its Key, even in
// the archive, is not changed, so an import may be repeated, and an interrupted one completed by repeating it. On an
// error the lines before it may have been stored; it names the line, and wraps [ErrInvalid] when that is not an entry.
func (m *Manager) Import(ctx context.Context, r io.Reader, by By) (Imported, error) {
	var total Imported
	if by.Actor == "" {
		return total, fmt.Errorf("dlq: import: %w: no actor: name the person who does it", ErrInvalid)
	}
	var batch []driver.Exported
	var numbers []int // of the lines in the batch
	size, line := 0, 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		receipts, err := m.importBatch(ctx, by, batch, numbers)
		for _, receipt := range receipts {
			if receipt.Result == driver.Stored {
				total.Stored++
			} else {
				total.Seen++
			}
		}
		batch, numbers, size = nil, nil, 0
		return err
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxExportLine)
	for lines.Scan() {
		line++
		data := bytes.TrimSpace(lines.Bytes())
		if len(data) == 0 {
			continue
		}
		x, err := readLine(data)
		if err != nil {
			return total, errors.Join(fmt.Errorf("dlq: import: line %d: %w", line, err), flush())
		}
		batch, numbers, size = append(batch, *x), append(numbers, line), size+len(data)
		if len(batch) == importBatch || size > importBytes {
			if err := flush(); err != nil {
				return total, err
			}
		}
	}
	if err := lines.Err(); err != nil {
		return total, errors.Join(fmt.Errorf("dlq: import: line %d: %w", line+1, err), flush())
	}
	return total, flush()
}

// importBatch stores a batch. If the store rejects it, the lines are stored one by one up to the one that it rejects.
func (m *Manager) importBatch(ctx context.Context, by By, batch []driver.Exported, numbers []int) ([]driver.Receipt,
	error,
) {
	receipts, err := m.cfg.Store.Import(ctx, by, m.Now(ctx), batch...)
	if err == nil || ctx.Err() != nil {
		return receipts, err
	}
	receipts = nil
	for i := range batch {
		one, err := m.cfg.Store.Import(ctx, by, m.Now(ctx), batch[i])
		if err != nil {
			return receipts, fmt.Errorf("dlq: import: line %d: message %.80q: %w", numbers[i], batch[i].Entry.EventID, err)
		}
		receipts = append(receipts, one...)
	}
	return receipts, nil
}

// exportedOf converts a line of an export to its entry with bodies. Missing fields are derived from the others.
func exportedOf(l *wire.Letter) (*driver.Exported, error) {
	x := &driver.Exported{}
	e := &x.Entry
	e.SetWire(&l.Entry)
	current := false
	for i := range l.Bodies {
		var body Body
		if err := body.SetWire(&l.Bodies[i]); err != nil {
			return nil, err
		}
		if body.SHA256 != sha256.Sum256(body.Payload) {
			return nil, fmt.Errorf("%w: revision %d is damaged: its payload does not match its SHA-256", ErrInvalid,
				body.Revision)
		}
		if body.Revision == e.Revision {
			current = true
			e.Size = int64(len(body.Payload))
		}
		x.Bodies = append(x.Bodies, body)
	}
	switch {
	case !current:
		return nil, fmt.Errorf("%w: the body of revision %d is missing", ErrInvalid, e.Revision)
	case len(l.Entry.Key) != 0 && len(l.Entry.Key) != len(e.Key):
		return nil, fmt.Errorf("%w: the key has %d bytes, and must have %d", ErrInvalid, len(l.Entry.Key), len(e.Key))
	case e.CreatedAt.IsZero():
		return nil, fmt.Errorf("%w: created_at is missing", ErrInvalid)
	case !e.Status.Valid():
		return nil, fmt.Errorf("%w: status %.40q is missing or unknown", ErrInvalid, e.Status)
	case e.Attempts < 0 || e.RedriveCount < 0 || e.RedriveBudget < 0 || e.DeathRedrive < 0 || e.Version < 0:
		return nil, fmt.Errorf("%w: attempts, redrive_count, redrive_budget, death_redrive and version must not be negative",
			ErrInvalid)
	}
	if e.Key == (driver.Key{}) {
		e.Key = keyOf(&e.Origin, e.Handler, e.EventID, x.Bodies[0].Payload, 0)
	}
	completeExported(e)
	return x, nil
}

// completeExported fills in fields that a line of another program may lack.
func completeExported(e *Entry) {
	e.Cause = Normalize(e.ErrorMessage)
	if e.Fingerprint == "" {
		e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	}
	e.DiedAt, e.FirstFailureAt = cmp.Or(e.DiedAt, e.CreatedAt), cmp.Or(e.FirstFailureAt, e.CreatedAt)
	e.LastSeenAt = cmp.Or(e.LastSeenAt, e.DiedAt)
	if e.ChangedAt.IsZero() {
		e.ChangedAt = e.DiedAt
		if e.ResolvedAt.After(e.ChangedAt) {
			e.ChangedAt = e.ResolvedAt
		}
	}
	e.ChangedBy = cmp.Or(e.ChangedBy, e.ResolvedBy, e.DiedBy())
	e.SeenCount, e.Version = max(e.SeenCount, 1), max(e.Version, 1)
}

func readLine(data []byte) (*driver.Exported, error) {
	if isTableRow(data) {
		return readTableRow(data)
	}
	var line wire.Letter
	if err := json.Unmarshal(data, &line); err != nil {
		if unknown, ok := errors.AsType[*wire.VersionError](err); ok {
			return nil, fmt.Errorf("%w: the export format: %w", ErrInvalid, unknown)
		}
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if line.Redacted {
		return nil, fmt.Errorf("%w: this export was made for a role that may not see everything, without the hidden values: "+
			"export again with a role that may", ErrInvalid)
	}
	return exportedOf(&line)
}
