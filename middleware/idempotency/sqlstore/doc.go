// Package sqlstore keeps the records of package idempotency in PostgreSQL, MySQL, MariaDB or SQLite, through
// database/sql and the driver of your choice.
//
// A handler that works on the same database marks its message in its own transaction, so that its effect happens
// exactly once:
//
//	func (h *Handler) Handle(m *message.Message) error {
//		tx, err := h.db.BeginTx(m.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
//		if err != nil {
//			return err
//		}
//		defer tx.Rollback()
//		if _, err := tx.ExecContext(m.Context(), "UPDATE accounts SET ..."); err != nil {
//			return err
//		}
//		if err := h.processed.CompleteTx(m.Context(), tx); err != nil {
//			return err
//		}
//		return tx.Commit()
//	}
//
// [Store.InTx] performs these steps.
package sqlstore
