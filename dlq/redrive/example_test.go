package redrive_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the SQL driver is the program's choice

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
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

// exampleRunner makes a runner without log lines.
func exampleRunner(letters *dlq.Letters, r dlq.Redriver, approval *dlq.Approval) *redrive.Runner {
	manager, err := dlq.NewManager(dlq.ManagerConfig{
		Store: letters.Store(), Redriver: r, Approval: approval, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	runner, err := redrive.NewRunner(manager, redrive.Config{})
	if err != nil {
		panic(err)
	}
	return runner
}

// A group is previewed, then redriven in a run: one message first, then the others.
func ExampleRunner_StartRun() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	for n := range 5 {
		_ = letters.DeadLetter(ctx, deadOrder(fmt.Sprint("A-", n), "bank is closed"))
	}
	runner := exampleRunner(letters, handled(letters), nil)

	spec := redrive.Spec{Filter: dlq.Filter{CauseText: "bank"}, Canary: []int{1}}
	preview, err := runner.PreviewRun(ctx, spec, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("would take", preview.Count, preview.Topics, "first", preview.Sample[0].Entry.EventID)

	run, err := runner.StartRun(ctx, spec, dlq.By{Actor: "ana", Note: "the bank is open"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(run.State, run.Counts.Waiting)
	run, err = runner.Drive(ctx, run.ID) // a server calls Work instead
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

// Where approval is configured, no one approves their own run.
func ExampleConfig_approval() {
	ctx := context.Background()
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	_ = letters.DeadLetter(ctx, deadOrder("A-17", "bank is closed"))
	runner := exampleRunner(letters, handled(letters), &dlq.Approval{})

	run, _ := runner.StartRun(ctx, redrive.Spec{}, dlq.By{Actor: "ana"})
	fmt.Println(run.State)
	_, err := runner.ApproveRun(ctx, run.ID, dlq.By{Actor: "ana"})
	fmt.Println(errors.Is(err, redrive.ErrForbidden))
	run, _ = runner.ApproveRun(ctx, run.ID, dlq.By{Actor: "bob"})
	fmt.Println(run.State, "approved by", run.ApprovedBy)
	// Output:
	// awaiting_approval
	// true
	// running approved by bob
}

// "Connection refused" is redriven after a minute, two, and four; messages that still fail wait for a person.
func ExampleRunner_Automate() {
	ctx, stop := context.WithCancel(context.Background())
	letters, remove := openExample(ctx)
	defer remove()
	defer letters.Close()
	runner := exampleRunner(letters, handled(letters), nil)
	stop() // a server stops here
	err := runner.Automate(ctx, redrive.Rule{Name: "network", CauseText: "connection refused", After: time.Minute})
	fmt.Println(err)
	err = runner.Automate(ctx, redrive.Rule{Name: "everything"})
	fmt.Println(errors.Is(err, dlq.ErrInvalid))
	// Output:
	// context canceled
	// true
}
