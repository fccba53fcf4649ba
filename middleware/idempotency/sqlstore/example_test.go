package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the SQL driver is the program's choice

	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// The effect and its record are committed together: a message that is delivered twice has one effect.
func ExampleStore_InTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sql.Open("sqlite", filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE charges (amount INT)"); err != nil {
		fmt.Println(err)
		return
	}
	processed, err := sqlstore.New(ctx, db, sqlstore.SQLite)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := idempotency.New(idempotency.Config{Store: processed, Consumer: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	charge := guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
		return nil, processed.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO charges VALUES (17)")
			return err
		})
	})

	for range 2 {
		if _, err := charge(message.NewMessage("order-1", nil)); err != nil {
			fmt.Println(err)
		}
	}
	var charges int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM charges").Scan(&charges)
	fmt.Println(charges, err)
	// Output: 1 <nil>
}
