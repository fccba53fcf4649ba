package dlq

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of one import transaction, and of one line.
const (
	importBatch   = 200
	importBytes   = 16 << 20
	maxExportLine = 1 << 30
)

// Export writes the entries that the filter picks, oldest first, as JSON lines: each with its state and every revision of its body, byte
// for byte, whatever the bytes are. It returns how many it wrote. Entries that die meanwhile may or may not be among them. The audit
// log is not part of an export.
func (m *Manager) Export(ctx context.Context, w io.Writer, f Filter) (int64, error) {
	return m.ExportRedacted(ctx, w, f, nil)
}

// ExportRedacted is Export for somebody who may not see everything: hide takes out of each entry what they may not. The lines say so, and
// Import refuses them, because what was hidden would be lost. A nil hide hides nothing.
func (m *Manager) ExportRedacted(ctx context.Context, w io.Writer, f Filter, hide func(*Exported)) (int64, error) {
	out := bufio.NewWriterSize(w, 64<<10)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	var n int64
	err := m.each(ctx, f, func(e *Entry) error {
		x, err := m.exported(ctx, e)
		if errors.Is(err, ErrNotFound) {
			return nil // purged since the page was read
		}
		if err != nil {
			return err
		}
		if hide != nil {
			hide(x)
		}
		line := lineOf(x)
		line.Redacted = hide != nil
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

// exported reads the bodies. The entry is read again, so that it fits them.
func (m *Manager) exported(ctx context.Context, listed *Entry) (*Exported, error) {
	e, err := m.store.Get(ctx, listed.ID)
	if err != nil {
		return nil, err
	}
	x := &Exported{Entry: *e}
	x.Entry.Body = nil
	for revision := 0; ; revision++ {
		body, err := m.store.Body(ctx, e.ID, revision)
		if errors.Is(err, ErrNotFound) && revision > e.Revision {
			return x, nil
		}
		if err != nil {
			return nil, err
		}
		x.Bodies = append(x.Bodies, *body)
	}
}

// each calls fn for the entries that the filter picks, oldest first, page by page. fn may change them.
func (m *Manager) each(ctx context.Context, f Filter, fn func(*Entry) error) error {
	page := Page{Limit: MaxPage, Order: OldestFirst}
	for {
		listing, err := m.store.List(ctx, f, page)
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

// Imported is what became of the lines of an import.
type Imported struct {
	// Stored are new entries, with new ids. Seen were there already, by their Key, and stay as they are.
	Stored, Seen int64
}

// Import stores what Export wrote, in the state it had there. An entry that is there already, by its Key, stays as it is: an import may
// be repeated, and a broken one is finished by repeating it. On an error the lines before it may have been stored; the error names the
// line, and wraps [ErrInvalid] when that is no entry.
func (m *Manager) Import(ctx context.Context, r io.Reader, by By) (Imported, error) {
	var total Imported
	if by.Actor == "" {
		return total, fmt.Errorf("dlq: import: %w: no actor: say who does it", ErrInvalid)
	}
	var batch []Exported
	size, line := 0, 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		receipts, err := m.store.Import(ctx, by, time.Now(), batch...)
		if err != nil {
			return fmt.Errorf("dlq: import: before line %d: %w", line+1, err)
		}
		for _, receipt := range receipts {
			if receipt.Outcome == Stored {
				total.Stored++
			} else {
				total.Seen++
			}
		}
		batch, size = nil, 0
		return nil
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
		batch, size = append(batch, *x), size+len(data)
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

func digest(payload []byte) [32]byte { return sha256.Sum256(payload) }

// readable is the payload as text, where JSON can hold it.
func readable(payload []byte) (string, bool) {
	const most = 64 << 10
	return string(payload), len(payload) <= most && utf8.Valid(payload)
}

func sortedPairs(headers map[string]string) []exactPair {
	pairs := make([]exactPair, 0, len(headers))
	for key, value := range headers {
		pairs = append(pairs, exactPair{exactText(key), exactText(value)})
	}
	slices.SortFunc(pairs, func(a, b exactPair) int { return strings.Compare(string(a[0]), string(b[0])) })
	return pairs
}
