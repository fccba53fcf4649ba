package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the SQL driver is the program's choice

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/envelope"
)

// openExample opens letters in a separate directory. A program needs only dlq.Open(ctx, os.Getenv("DLQ_URL")).
func openExample(ctx context.Context) (letters *dlq.Letters, remove func()) {
	dir, err := os.MkdirTemp("", "redrive-example-")
	if err != nil {
		panic(err)
	}
	letters, err = dlq.Open(ctx, "sqlite:"+filepath.Join(dir, "dead.db"), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	return letters, func() { _ = os.RemoveAll(dir) }
}

// deadOrder is a dead letter as the pipeline passes it to its sink.
func deadOrder(id, problem string) *envelope.DeadLetter {
	m := message.NewMessage(id, []byte(`{"order":"`+id+`"}`))
	m.Metadata[envelope.KeyMessageID] = id
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: problem}, Class: "*pay.Error",
		Handler: "charge",
		Origin:  envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing"}, Attempts: 4,
		At: time.Date(2026, time.February, 28, 22, 53, 42, 0, time.UTC),
	}
}

// handled is a broker whose consumer handles every message at once, and reports success.
func handled(letters *dlq.Letters) dlq.Redriver {
	return dlq.RedriverFunc(func(ctx context.Context, origin envelope.Origin, m *message.Message, _ time.Duration) error {
		return letters.Redriven(ctx, envelope.RedrivenBy(m, origin, time.Now()))
	})
}

// Dead letters go into a SQLite file; the same delivery twice is one entry.
func ExampleOpen() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()

	for range 2 {
		if err := letters.DeadLetter(ctx, deadOrder("A-17", "card 4711 declined")); err != nil {
			fmt.Println(err) // neither store nor spool: do not ack
		}
	}
	listing, err := letters.Store().List(ctx, dlq.Filter{Statuses: []dlq.Status{dlq.Pending}, Topic: "orders"}, dlq.Page{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range listing.Entries {
		fmt.Printf("%d %s %s: %s (%s, seen %d times)\n", e.ID, e.Status, e.EventID, e.ErrorMessage, e.Reason, e.SeenCount)
	}
	// Output:
	// 1 PENDING A-17: card 4711 declined (exhausted, seen 2 times)
}

// A redrive puts the message in front of its consumer again, and its outcome closes the entry on its own.
func ExampleManager_Redrive() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "bank is closed"))
	broker := dlq.RedriverFunc(func(ctx context.Context, origin envelope.Origin, m *message.Message,
		_ time.Duration,
	) error {
		fmt.Printf("to %s of %s: %s, redrive %s\n", origin.Consumer, origin.Topic, m.Payload,
			m.Metadata[envelope.KeyRedriveCount])
		// The pipeline that consumes it reports this when the handler succeeds.
		return letters.Redriven(ctx, envelope.RedrivenBy(m, origin, time.Now()))
	})

	manager := letters.Manager(broker)
	if _, err := manager.Redrive(ctx, 1, dlq.By{Actor: "ana", Note: "the bank is open"}); err != nil {
		fmt.Println(err)
		return
	}
	e, err := manager.Get(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Status, "by", e.ResolvedBy)
	records, err := manager.Audit(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range records {
		fmt.Println(strings.TrimSpace(fmt.Sprint(r.Actor, " ", r.Action, " ", r.From, " -> ", r.To, " ", r.Note)))
	}
	// Output:
	// to billing of orders: {"order":"A-17"}, redrive 1
	// RESOLVED by redrive
	// ana redrive PENDING -> RETRYING the bank is open
	// redrive succeed RETRYING -> RESOLVED
}

// Of two operators one wins, and the other learns who that was.
func Example_conflict() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "test order"))

	manager := letters.Manager(nil)
	_, _ = manager.Discard(ctx, 1, dlq.By{Actor: "ana", Note: "a test"})
	_, err := manager.Resolve(ctx, 1, dlq.By{Actor: "bob"})
	if conflict, ok := errors.AsType[*driver.ConflictError](err); ok {
		fmt.Println(conflict.By, "was faster: it is", conflict.Status)
	}
	e, _ := manager.Restore(ctx, 1, dlq.By{Actor: "bob", Note: "it was not"})
	fmt.Println(e.Status)
	// Output:
	// ana was faster: it is DISCARDED
	// PENDING
}

// An operator sees two causes, not four messages.
func ExampleManager_Groups() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	for id, problem := range map[string]string{
		"A-1": "card 4711 of 'Ana' declined", "A-2": "card 4712 of 'Bob' declined", "A-3": "card 99 of 'Eve' declined",
		"B-1": "dial tcp 10.0.0.1:443: connection refused",
	} {
		_ = letters.DeadLetter(ctx, deadOrder(id, problem))
	}
	groups, err := letters.Manager(nil).Groups(ctx, dlq.GroupQuery{Status: dlq.Pending})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, g := range groups {
		fmt.Println(g.Counts.Pending, g.Cause)
	}
	// Output:
	// 3 card ? of '?' declined
	// 1 dial tcp ?: connection refused
}

func ExampleNormalize() {
	fmt.Println(dlq.Normalize(`order 6f1c2ab0-9c1d-4f0e-8a55-0c2f6b1f1d2e of "Ana": timeout after 250ms at ` +
		`2026-02-28T22:53:42Z`))
	fmt.Println(dlq.Fingerprint("charge", "*pay.Error", "504", "order 17: timeout") ==
		dlq.Fingerprint("charge", "*pay.Error", "504", "order 18: timeout"))
	// Output:
	// order ? of "?": timeout after ? at ?
	// true
}

// An edit is previewed before it is made; the original stays.
func ExampleManager_EditAndRedrive() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "no currency"))
	manager := letters.Manager(handled(letters))

	edit := dlq.Edit{Payload: []byte(`{"order":"A-17","currency":"EUR"}`)}
	diff, err := manager.PreviewEdit(ctx, 1, edit)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(diff)
	e, err := manager.EditAndRedrive(ctx, 1, edit, dlq.By{Actor: "ana", Note: "added the currency"})
	if err != nil {
		fmt.Println(err)
		return
	}
	original, _ := manager.Body(ctx, e.ID, 0)
	fmt.Println("revision", e.Revision, "original", string(original.Payload))
	// Output:
	//  {
	// -  "order": "A-17"
	// +  "order": "A-17",
	// +  "currency": "EUR"
	//  }
	// revision 1 original {"order":"A-17"}
}

// An export is a JSON line for each entry; importing it twice stores it once.
func ExampleManager_Import() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "bank is closed"))
	var file bytes.Buffer
	n, err := letters.Manager(nil).Export(ctx, &file, dlq.Filter{Topic: "orders"})
	fmt.Println(n, err)

	other, removeOther := openExample(ctx)
	defer removeOther()
	defer other.Close()
	for range 2 {
		imported, err := other.Manager(nil).Import(ctx, io.LimitReader(strings.NewReader(file.String()), 1<<20),
			dlq.By{Actor: "ana"})
		fmt.Println(imported.Stored, imported.Seen, err)
	}
	// Output:
	// 1 <nil>
	// 1 0 <nil>
	// 0 1 <nil>
}

// A whole group is discarded at once, and can be restored.
func ExampleManager_ChangeAll() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	for n := range 3 {
		_ = letters.DeadLetter(ctx, deadOrder(fmt.Sprint("T-", n), "test order"))
	}
	manager := letters.Manager(nil)
	bulk, err := manager.ChangeAll(ctx, driver.ActionDiscard, dlq.Filter{CauseText: "test"}, dlq.By{Actor: "ana", Note: "tests"})
	fmt.Println(bulk.Changed, bulk.Refused, err)
	// Output:
	// 3 0 <nil>
}
