package dlq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// handled is a broker whose consumer handles every message at once, and reports so.
func handled(letters *dlq.Letters) dlq.Redriver {
	return dlq.RedriverFunc(func(ctx context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
		return letters.Redriven(ctx, m.Metadata[envelope.KeyRedriveID], m.Metadata[envelope.KeyMessageID], time.Now())
	})
}

// quiet is the logger of the examples.
func quiet() dlq.ManagerOption { return dlq.WithManagerLogger(slog.New(slog.DiscardHandler)) }

// A group is previewed, then redriven in a run: one message first, then the others.
func ExampleManager_StartRun() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	for n := range 5 {
		_ = letters.DeadLetter(ctx, deadOrder(fmt.Sprint("A-", n), "bank is closed"))
	}
	manager := letters.Manager(handled(letters), quiet())

	spec := dlq.RunSpec{Filter: dlq.Filter{CauseText: "bank"}, Canary: []int{1}}
	preview, err := manager.PreviewRun(ctx, spec, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("would take", preview.Count, preview.Topics, "first", preview.Sample[0].Entry.EventID)

	run, err := manager.StartRun(ctx, spec, dlq.By{Actor: "ana", Note: "the bank is open"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.State, run.Counts.Waiting)
	run, err = manager.Drive(ctx, run.ID) // a server calls Work instead
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.State, run.Counts.Succeeded)
	// Output:
	// would take 5 [{orders 5}] first A-0
	// running 5
	// completed 5
}

// Where approval is configured, nobody approves a run of their own.
func ExampleWithApproval() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "bank is closed"))
	manager := letters.Manager(handled(letters), quiet(), dlq.WithApproval(0))

	run, _ := manager.StartRun(ctx, dlq.RunSpec{}, dlq.By{Actor: "ana"})
	fmt.Println(run.State)
	_, err := manager.ApproveRun(ctx, run.ID, dlq.By{Actor: "ana"})
	fmt.Println(errors.Is(err, dlq.ErrForbidden))
	run, _ = manager.ApproveRun(ctx, run.ID, dlq.By{Actor: "bob"})
	fmt.Println(run.State, "approved by", run.ApprovedBy)
	// Output:
	// awaiting_approval
	// true
	// running approved by bob
}

// An edit is looked at before it is made; the original stays.
func ExampleManager_EditAndRedrive() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "no currency"))
	manager := letters.Manager(handled(letters), quiet())

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
	n, err := letters.Manager(nil, quiet()).Export(ctx, &file, dlq.Filter{Topic: "orders"})
	fmt.Println(n, err)

	other, removeOther := openExample(ctx)
	defer removeOther()
	defer other.Close()
	for range 2 {
		imported, err := other.Manager(nil, quiet()).Import(ctx, io.LimitReader(strings.NewReader(file.String()), 1<<20), dlq.By{Actor: "ana"})
		fmt.Println(imported.Stored, imported.Seen, err)
	}
	// Output:
	// 1 <nil>
	// 1 0 <nil>
	// 0 1 <nil>
}

// "Connection refused" is tried again after a minute, two, and four; whatever fails then waits for a person.
func ExampleManager_Automate() {
	ctx, stop := context.WithCancel(context.Background())
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	manager := letters.Manager(handled(letters), quiet())
	stop() // a server stops here
	err := manager.Automate(ctx, dlq.Rule{Name: "network", CauseText: "connection refused", After: time.Minute})
	fmt.Println(err)
	err = manager.Automate(ctx, dlq.Rule{Name: "everything"})
	fmt.Println(errors.Is(err, dlq.ErrInvalid))
	// Output:
	// context canceled
	// true
}

// Everything of a group is given up at once, and can be brought back.
func ExampleManager_DiscardAll() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	for n := range 3 {
		_ = letters.DeadLetter(ctx, deadOrder(fmt.Sprint("T-", n), "test order"))
	}
	manager := letters.Manager(nil, quiet())
	bulk, err := manager.DiscardAll(ctx, dlq.Filter{CauseText: "test"}, dlq.By{Actor: "ana", Note: "tests"})
	fmt.Println(bulk.Changed, bulk.Refused, err)
	// Output:
	// 3 0 <nil>
}
