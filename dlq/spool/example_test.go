package spool_test

import (
	"context"
	"fmt"
	"os"

	"github.com/redrive-go/redrive/dlq/spool"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "redrive-example-") // a disk that outlives the process, in production
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	waiting, err := spool.Open(spool.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer waiting.Close()

	for _, line := range []string{`{"id":1}`, `{"id":2}`} {
		if err := waiting.Append(ctx, []byte(line)); err != nil {
			fmt.Println(err) // nothing is promised
			return
		}
	}
	err = waiting.Drain(ctx, func(_ context.Context, lines [][]byte) error {
		for _, line := range lines {
			fmt.Println(string(line))
		}
		return nil // taken
	})
	fmt.Println(err, waiting.Empty())
	// Output:
	// {"id":1}
	// {"id":2}
	// <nil> true
}
