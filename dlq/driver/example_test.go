package driver_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// A store applies each change to the entry that it has locked, so that of two operators the slower one is refused.
func ExampleChange_Apply() {
	entry := driver.Entry{ID: 7, Status: driver.Pending, Version: 1, RedriveBudget: 3}
	redrive := driver.Change{
		Action: driver.ActionRedrive, IDs: []int64{7}, Actor: "ana", Lease: time.Hour,
		At: time.Date(2026, time.March, 1, 9, 0, 0, 0, time.UTC),
	}

	entry, err := redrive.Apply(entry)
	fmt.Println(entry.Status, entry.RedriveCount, entry.Version, err)

	_, err = redrive.Apply(entry)
	fmt.Println(err)
	// Output:
	// RETRYING 1 2 <nil>
	// dlq: entry 7: cannot redrive: it has been RETRYING since 2026-03-01T09:00:00Z (version 2), by ana; its outcome is awaited until 2026-03-01T10:00:00Z
}

// counted counts the letters that it stores.
type counted struct {
	driver.Store

	stored int
}

func (c *counted) Put(ctx context.Context, letters ...*driver.Entry) ([]driver.Receipt, error) {
	receipts, err := c.Store.Put(ctx, letters...)
	c.stored += len(receipts)
	return receipts, err
}

// Unwrap lets As find the abilities of the wrapped store.
func (c *counted) Unwrap() driver.Store { return c.Store }

// A wrapper embeds a store and has a method Unwrap. The optional abilities of the wrapped store are found with As,
// never with a type assertion.
func ExampleAs() {
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlstore.Open(context.Background(), filepath.Join(dir, "dead.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	var wrapped driver.Store = &counted{Store: store}
	defer wrapped.Close()

	_, asserted := wrapped.(driver.ArchiveStore)
	_, found := driver.As[driver.ArchiveStore](wrapped)
	fmt.Println(asserted, found)
	// Output: false true
}
