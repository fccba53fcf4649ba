package sqlstore

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Limits for the pieces of a large call, in letters.
const (
	minPiece = 100
	maxPiece = 500
)

// putPieces stores many letters in pieces: while a server works on one, this process prepares the rows of the next, and
// a second connection makes a second processor of the server work. Each piece is a transaction; after an error the
// caller repeats the call anyway.
func (s *Store) putPieces(ctx context.Context, letters []*dlq.Entry) ([]driver.Receipt, error) {
	size := s.pieceSize(letters)
	if size >= len(letters) {
		return s.putPiece(ctx, letters)
	}
	pieces := slices.Collect(slices.Chunk(letters, size))
	receipts, errs := make([][]driver.Receipt, len(pieces)), make([]error, len(pieces))
	var group sync.WaitGroup
	for i := range pieces {
		group.Go(func() { receipts[i], errs[i] = s.putPiece(ctx, pieces[i]) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return slices.Concat(receipts...), nil
}

func (s *Store) putPiece(ctx context.Context, letters []*dlq.Entry) ([]driver.Receipt, error) {
	rows, err := s.makeRows(letters)
	if err != nil {
		return nil, err
	}
	return s.writer.put(ctx, rows)
}

// pieceSize is how many letters of a call are in a piece. Letters that may concern the same entry, or were redriven,
// are stored in order, in one piece.
func (s *Store) pieceSize(letters []*dlq.Entry) int {
	if _, short := s.dialect.(newPutter); !short || len(letters) < 2*minPiece {
		return len(letters)
	}
	seen := make(map[driver.Key]bool, len(letters))
	for _, e := range letters {
		if seen[e.Key] || !(&letterRow{Entry: e}).isNew() {
			return len(letters)
		}
		seen[e.Key] = true
	}
	return min(max((len(letters)+s.writers()-1)/s.writers(), minPiece), maxPiece)
}
