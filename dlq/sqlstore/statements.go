package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// statements keeps the prepared statements of the write path, which are few, long and always the same.
//
// A statement cannot be prepared on the pool while a transaction has the only connection: it would wait for itself. So
// a new one runs unprepared the first time, and is prepared between two transactions.
type statements struct {
	dialect sqldb.Dialect
	// unprepared is for transactions of another's pool: a prepared statement belongs to its pool.
	unprepared bool

	mu       sync.Mutex
	prepared map[string]*sql.Stmt // nil for one to prepare
}

func (p *statements) exec(ctx context.Context, tx *sql.Tx, query string, args ...any) (sql.Result, error) {
	query = p.dialect.Bind(query)
	if stmt := p.get(query); stmt != nil {
		return tx.StmtContext(ctx, stmt).ExecContext(ctx, args...) //nolint:sqlclosecheck // the transaction closes it
	}
	return tx.ExecContext(ctx, query, args...)
}

func (p *statements) query(ctx context.Context, tx *sql.Tx, query string, args ...any) (*sql.Rows, error) {
	query = p.dialect.Bind(query)
	if stmt := p.get(query); stmt != nil {
		return tx.StmtContext(ctx, stmt).QueryContext(ctx, args...) //nolint:sqlclosecheck // the transaction closes it
	}
	return tx.QueryContext(ctx, query, args...)
}

func (p *statements) get(query string) *sql.Stmt {
	if p.unprepared {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	stmt, known := p.prepared[query]
	if !known {
		if p.prepared == nil {
			p.prepared = make(map[string]*sql.Stmt)
		}
		p.prepared[query] = nil
	}
	return stmt
}

// prepare prepares the statements requested since the last call. Do not call it with a transaction open.
func (p *statements) prepare(ctx context.Context, db *sql.DB) error {
	p.mu.Lock()
	var wanted []string
	for query, stmt := range p.prepared {
		if stmt == nil {
			wanted = append(wanted, query)
		}
	}
	p.mu.Unlock()
	for _, query := range wanted {
		stmt, err := db.PrepareContext(ctx, query) //nolint:sqlclosecheck // close does
		if err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
		p.mu.Lock()
		p.prepared[query] = stmt
		p.mu.Unlock()
	}
	return nil
}

func (p *statements) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, stmt := range p.prepared {
		if stmt != nil {
			errs = append(errs, stmt.Close())
		}
	}
	p.prepared = nil
	return errors.Join(errs...)
}
