package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

var _ driver.LedgerStore = (*Store)(nil)

var sendColumns = []string{"send_key", "person", "at", "entries", "is_open"}

// Reserve records what a person is about to send.
func (s *Store) Reserve(ctx context.Context, r driver.Reservation) (granted bool, err error) {
	if err := r.Validate(); err != nil {
		return false, fmt.Errorf("sqlstore: reserve: %w", err)
	}
	person, at, open := driver.Person(r.Actor), s.dialect.time(r.At), 0
	if r.Open {
		open = 1
	}
	err = s.inTx(ctx, "reserve", func(tx *sql.Tx) error {
		granted = false
		// The write locks the person's row until the transaction ends: otherwise two reservations counted at once would both
		// find room.
		lock := upsertion{
			table: "dlq_sends", columns: sendColumns, key: sendColumns[:1], add: []string{"entries"}, latest: []string{"at"},
		}
		if _, err := s.exec(ctx, tx, lock.sql(s.dialect.name(), 1), "person "+person, person, at, 0, 0); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE person = ? AND at < ? AND is_open = 0",
			person, s.dialect.time(r.At.Add(-r.Window)))
		if err != nil {
			return err
		}
		var others int64
		err = s.queryRow(ctx, tx, "SELECT coalesce(sum(entries), 0) FROM dlq_sends WHERE person = ? AND send_key <> ?",
			person, r.Key).Scan(&others)
		if err != nil || others+r.Entries > r.Limit {
			return err
		}
		if _, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE send_key = ?", r.Key); err != nil {
			return err
		}
		if _, err := s.exec(ctx, tx, insertInto("dlq_sends", sendColumns, 1), r.Key, person, at, r.Entries,
			open); err != nil {
			return err
		}
		granted = true
		return nil
	})
	return granted && err == nil, err
}

// Unreserve removes a reservation.
func (s *Store) Unreserve(ctx context.Context, key string) error {
	return s.inTx(ctx, "unreserve", func(tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, "DELETE FROM dlq_sends WHERE send_key = ?", key)
		return err
	})
}

// settleSends closes the reservation of a run that has ended: what it sent counts from now on, the rest is free again.
func (s *Store) settleSends(ctx context.Context, tx *sql.Tx, now, r *redrive.Run) error {
	if !r.State.Ended() {
		return nil
	}
	_, err := s.exec(ctx, tx, "UPDATE dlq_sends SET at = ?, entries = ?, is_open = 0 WHERE send_key = ?",
		s.dialect.time(r.ChangedAt), now.Counts.Started(), driver.RunKey(r.ID))
	return err
}
