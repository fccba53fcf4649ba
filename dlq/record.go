package dlq

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"

	"github.com/redrive-go/redrive/dlq/wire"
)

// spooled returns the entry of a record. Fields derived from its error are computed again, because their rules may have
// changed since.
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

// encodeRecord encodes a record of the current version as a spool line: JSON without a line feed.
func encodeRecord(r wire.Record) ([]byte, error) {
	r.Version = wire.Version
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
		return r, fmt.Errorf("dlq: spool: %w: record: %w", ErrInvalid, err)
	}
	if r.Dead == nil && r.Redriven == nil {
		return r, fmt.Errorf("dlq: spool: %w: the record is neither a dead letter nor an outcome", ErrInvalid)
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
		results, err := store.Change(ctx, succeeded(*r.Redriven))
		if err == nil {
			err = outcomeError(ctx, *r.Redriven, results[0].Err, logger)
		}
		if err != nil {
			return err
		}
	}
	return flush()
}
