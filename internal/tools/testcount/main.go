// Command testcount adds up what `go test -json` reported, and prints one line: N passed, N failed, N skipped.
//
//	testcount [-failed N] [-again FILE] file.json...
//	testcount -candidates file.json
//
// Subtests count. A package that failed without a failing test (it did not compile, or it panicked or timed out outside
// of one) counts as one failure, and so do the N failures of other checks. It exits with 1 if anything failed or no
// test ran.
//
// A test that failed and passed each time in FILE, with what it did when it was run again, is named as unstable; it has
// failed all the same. With -candidates it prints which tests should be run again, a package and a test per line, and
// exits with 1 if there are none: because more than two failed, a package failed without a test, or there was a data
// race.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// mostCandidates is how many tests are run again: more at once are not a coincidence.
const mostCandidates = 2

type event struct {
	Action, Package, Test, Output string
}

// test is one that is not a subtest, so that it can be run alone.
type test struct{ pkg, name string }

func (e event) root() test {
	name, _, _ := strings.Cut(e.Test, "/")
	return test{e.Package, name}
}

// results are those of one file.
type results struct {
	passed, skipped int
	whole           map[test]bool // that passed
	failed          map[test]int  // with subtests
	packages        int           // that failed without a failing test
	races           bool
}

func main() {
	failed := flag.Int("failed", 0, "failures of other checks to add")
	again := flag.String("again", "", "results of tests that were run again")
	candidates := flag.Bool("candidates", false, "print which tests may be run again")
	flag.Parse()
	if *candidates {
		if !printCandidates(flag.Arg(0)) {
			os.Exit(1)
		}
		return
	}
	if !count(*failed, *again, flag.Args()) {
		os.Exit(1)
	}
}

func printCandidates(name string) bool {
	r, err := read(name)
	if err != nil || r.packages > 0 || r.races || len(r.failed) == 0 || len(r.failed) > mostCandidates {
		return false
	}
	for t := range r.failed {
		fmt.Println(t.pkg, t.name)
	}
	return true
}

func count(failed int, again string, names []string) bool {
	second := &results{}
	unstable := map[test]bool{}
	if again != "" {
		var err error
		if second, err = read(again); err != nil {
			fmt.Fprintln(os.Stderr, "testcount:", err)
			failed++
		}
		failed += second.packages
	}
	var passed, skipped int
	for _, name := range names {
		r, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "testcount:", err)
			failed++
			continue
		}
		passed, skipped, failed = passed+r.passed, skipped+r.skipped, failed+r.packages
		for t, n := range r.failed {
			failed += n
			if second.whole[t] && second.failed[t] == 0 && !r.races && !second.races {
				unstable[t] = true
			}
		}
	}
	for _, t := range slices.SortedFunc(maps.Keys(unstable), func(a, b test) int {
		return strings.Compare(a.pkg+a.name, b.pkg+b.name)
	}) {
		fmt.Printf("UNSTABLE: %s of %s failed and then passed each time\n", t.name, t.pkg)
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	return failed == 0 && passed > 0
}

func read(name string) (*results, error) {
	r := &results{whole: map[test]bool{}, failed: map[test]int{}}
	f, err := os.Open(name)
	if err != nil {
		return r, err
	}
	defer f.Close()

	failedIn := make(map[string]bool) // packages with a failing test
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // a compiler's message
		}
		switch {
		case e.Test != "" && e.Action == "pass":
			r.passed++
			if e.Test == e.root().name {
				r.whole[e.root()] = true
			}
		case e.Test != "" && e.Action == "skip":
			r.skipped++
		case e.Test != "" && e.Action == "fail":
			r.failed[e.root()]++
			failedIn[e.Package] = true
		case e.Action == "fail" && !failedIn[e.Package]:
			r.packages++
		case strings.Contains(e.Output, "WARNING: DATA RACE"):
			r.races = true
		}
	}
	return r, lines.Err()
}
