package sqlqueue_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the program chooses the driver

	"github.com/redrive-go/redrive/brokers/sqlqueue"
)

// openApp opens an application's database, here a SQLite file.
func openApp() (db *sql.DB, closeApp func()) {
	dir, err := os.MkdirTemp("", "sqlqueue")
	if err != nil {
		panic(err)
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "app.db")+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	return db, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}

// Either both the order and its event are stored or neither is.
func ExampleBroker_TxPublisher() {
	db, closeApp := openApp()
	defer closeApp()
	ctx := context.Background()
	queue, err := sqlqueue.New(ctx, db, sqlqueue.SQLite)
	if err != nil {
		panic(err)
	}
	defer queue.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id TEXT)"); err != nil {
		panic(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES ('order-1')"); err != nil {
		panic(err)
	}
	if err := queue.TxPublisher(tx).Publish("orders", message.NewMessage("order-1", []byte("{}"))); err != nil {
		panic(err)
	}
	if err := tx.Commit(); err != nil {
		panic(err)
	}

	messages, err := queue.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		panic(err)
	}
	m := <-messages
	fmt.Println("received", m.UUID)
	m.Ack()
	// Output: received order-1
}

// A handler's change and the ack of its message are in one transaction, so the change happens once, however often the
// message is delivered.
func ExampleInTx() {
	db, closeApp := openApp()
	defer closeApp()
	ctx := context.Background()
	queue, err := sqlqueue.New(ctx, db, sqlqueue.SQLite)
	if err != nil {
		panic(err)
	}
	defer queue.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE account AS SELECT 0 AS balance"); err != nil {
		panic(err)
	}
	if err := queue.Publisher().Publish("deposits", message.NewMessage("deposit-1", nil)); err != nil {
		panic(err)
	}
	handle := func(m *message.Message) error {
		return sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "UPDATE account SET balance = balance + 10")
			return err
		})
	}

	messages, err := queue.Subscriber().Subscribe(ctx, "deposits")
	if err != nil {
		panic(err)
	}
	m := <-messages
	fmt.Println("error:", handle(m))
	m.Ack()
	var balance int
	if err := db.QueryRowContext(ctx, "SELECT balance FROM account").Scan(&balance); err != nil {
		panic(err)
	}
	fmt.Println("balance:", balance)
	// Output:
	// error: <nil>
	// balance: 10
}
