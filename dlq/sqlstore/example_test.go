package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// The view of an operator with a SQL client: dlq_events, with the columns that dashboards and handbooks use.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "dead.db")
	store, err := sqlstore.Open(ctx, "sqlite:"+path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	at := time.Date(2026, time.February, 28, 22, 53, 42, 0, time.UTC)
	first, second := entry(1, at), entry(2, at.Add(time.Minute))
	first.ErrorMessage, second.ErrorMessage = "bank: no such card", "bank: no such card"
	if _, err := store.Put(ctx, first, second); err != nil {
		fmt.Println(err)
		return
	}

	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	var message string
	var occurrences int
	err = db.QueryRowContext(ctx, `SELECT error_message, COUNT(*) AS occurrences FROM dlq_events WHERE status = 'PENDING'
		GROUP BY error_message ORDER BY occurrences DESC LIMIT 10`).Scan(&message, &occurrences)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(occurrences, message)
	// Output:
	// 2 bank: no such card
}

// The dead letter and the application's own row are one transaction.
func ExampleStore_PutTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "app.db")
	store, err := sqlstore.Open(ctx, "sqlite:"+path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := store.PutTx(ctx, tx, entry(1, time.Now())); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Rollback(); err != nil { // the application changed its mind
		fmt.Println(err)
		return
	}
	n, err := store.Count(ctx, dlq.Filter{}, 0)
	fmt.Println(n, err)
	// Output:
	// 0 <nil>
}
