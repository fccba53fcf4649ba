package sqlstore

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Bounds of the pieces of a large call, in letters.
const (
	minPiece = 100
	maxPiece = 500
)

// putPieces stores letters, many of them in pieces: while a server works on one this process makes the rows of the
// next, and a second connection brings a second processor of the server to work. Each piece is a transaction; a caller
// who gets an error repeats the call anyway.
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

// pieceSize is how many letters of a call a piece has. Letters that may meet each other, or that came back, are stored
// in their order, in one.
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
