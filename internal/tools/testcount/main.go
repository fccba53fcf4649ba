// Command testcount adds up what `go test -json` reported, and prints one line: N passed, N failed, N skipped.
//
//	testcount [-failed N] file.json...
//
// Subtests count. A package that failed without a failing test (it did not compile, or it panicked or timed out outside
// of one) counts as one failure, and so do the N failures of other checks. It exits with 1 if anything failed or no
// test ran.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

type counts struct{ passed, failed, skipped int }

func main() {
	var all counts
	flag.IntVar(&all.failed, "failed", 0, "failures of other checks to add")
	flag.Parse()
	for _, name := range flag.Args() {
		if err := all.add(name); err != nil {
			fmt.Fprintln(os.Stderr, "testcount:", err)
			all.failed++
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", all.passed, all.failed, all.skipped)
	if all.failed > 0 || all.passed == 0 {
		os.Exit(1)
	}
}

// add counts the results of one file.
func (c *counts) add(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()

	failedIn := make(map[string]bool) // packages with a failing test
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e struct{ Action, Package, Test string }
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // a compiler's message
		}
		switch {
		case e.Test != "" && e.Action == "pass":
			c.passed++
		case e.Test != "" && e.Action == "skip":
			c.skipped++
		case e.Test != "" && e.Action == "fail":
			c.failed++
			failedIn[e.Package] = true
		case e.Action == "fail" && !failedIn[e.Package]:
			c.failed++
		}
	}
	return lines.Err()
}
