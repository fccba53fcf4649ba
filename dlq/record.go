package dlq

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/redrive-go/redrive/dlq/wire"
)

// deadRecord is the spool record of a dead letter that is not stored yet.
func deadRecord(e *Entry) wire.Record {
	letter := e.Detail()
	return wire.Record{Version: wire.Version, Dead: &letter}
}

// redrivenRecord is the spool record of a redrive's outcome.
func redrivenRecord(r redriven) wire.Record {
	outcome := wire.Redriven(r)
	return wire.Record{Version: wire.Version, Redriven: &outcome}
}

// spooled is the entry of a record. Fields derived from its error are computed again: their rules may have changed
// since.
func spooled(letter *wire.EntryDetail) (*Entry, error) {
	e := &Entry{}
	if err := e.SetDetail(letter); err != nil {
		return nil, err
	}
	e.Cause = Normalize(e.ErrorMessage)
	e.Fingerprint = Fingerprint(e.Handler, e.ErrorClass, e.ErrorCode, e.ErrorMessage)
	e.Size = int64(len(e.Body.Payload))
	e.ChangedBy = e.DiedBy()
	return e, nil
}

// encodeRecord encodes a spool line: JSON without a line feed.
func encodeRecord(r wire.Record) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return nil, fmt.Errorf("dlq: spool: %w", err)
	}
	return bytes.TrimSuffix(line.Bytes(), []byte{'\n'}), nil
}

func decodeRecord(data []byte) (wire.Record, error) {
	var r wire.Record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("dlq: spool: record: %w", err)
	}
	if r.Dead == nil && r.Redriven == nil {
		return r, fmt.Errorf("dlq: spool: %w: a record that is neither a dead letter nor an outcome", ErrInvalid)
	}
	return r, nil
}

// putRecords stores a sequence of records in order. Adjacent dead letters go in one call.
func putRecords(ctx context.Context, store Store, logger *slog.Logger, records []wire.Record) error {
	var dead []*Entry
	flush := func() error {
		if len(dead) == 0 {
			return nil
		}
		_, err := store.Put(ctx, dead...)
		dead = dead[:0]
		return err
	}
	for _, r := range records {
		if r.Dead != nil {
			e, err := spooled(r.Dead)
			if err != nil {
				return err
			}
			dead = append(dead, e)
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := redriven(*r.Redriven).put(ctx, store, logger); err != nil {
			return err
		}
	}
	return flush()
}
