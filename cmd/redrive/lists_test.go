package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Every list of the command is complete or is marked as incomplete, on the store and through a server. A list cannot be
// left out: each command with --limit is tested, or starts something.
func TestLists_SayThatThereAreMore(t *testing.T) {
	for name, served := range map[string]bool{"store": false, "server": true} {
		t.Run(name, func(t *testing.T) {
			hermetic(t)
			t.Chdir(t.TempDir())
			seed(t, "dead.db")
			seedQueue(t, "queue.db")
			t.Setenv("REDRIVE_STORE", "dead.db")
			held(t)
			code, _, stderr := command(t, "dlq", "redrive", "--topic", "orders", "--detach", "--yes", "--id", "second",
				"--broker", "sqlite:queue.db")
			require.Equal(t, exitOK, code, stderr)
			if served {
				t.Setenv("REDRIVE_STORE", "")
				t.Setenv("REDRIVE_SERVER", serveSeed(t, ""))
			}
			tried := []string{"dlq redrive"} // how many it may list
			for list, flags := range map[string]string{
				"dlq list": "--status any", "dlq groups": "--status any", "runs list": "", "audit list": "",
			} {
				tried = append(tried, list)
				args := strings.Fields(list + " " + flags)
				code, _, stderr := command(t, append(args, "--limit", "1")...)
				require.Equal(t, exitOK, code, stderr)
				require.Contains(t, stderr, "there are more: --", list)
				code, _, stderr = command(t, append(args, "--limit", "1000")...)
				require.Equal(t, exitOK, code, stderr)
				require.Empty(t, stderr, list)
			}
			slices.Sort(tried)
			require.Equal(t, tried, limited((&app{}).root()))
		})
	}
}

// A long list in a format that is lines is printed page by page, and is the same text as one page.
func TestPages_PrintsLinesAsTheyAreRead(t *testing.T) {
	for _, format := range []string{"csv", "jsonl"} {
		var out strings.Builder
		a := &app{out: &out}
		a.flags.output = format
		before := map[string]int{"csv": 1, "jsonl": 0}[format] // the header
		sizes := []int{2, 3, 1, 0}                             // an entry may be gone when its page is read
		var all []wire.Entry
		entries, next, err := pages(a, wire.Page{}, true, entryColumns, func(wire.Page) ([]wire.Entry, string, error) {
			if read := 4 - len(sizes); read >= 2 {
				require.Equal(t, before+[]int{2, 5}[read-2], strings.Count(out.String(), "\n"), "%s: all pages but one", format)
			}
			found := make([]wire.Entry, sizes[0])
			for i := range found {
				found[i] = wire.Entry{ID: int64(len(all) + i + 1), Reason: "exhausted"}
			}
			all, sizes = append(all, found...), sizes[1:]
			return found, strings.Repeat("next", min(1, len(sizes))), nil
		})
		require.NoError(t, err)
		require.Empty(t, next)
		require.Len(t, entries, 1)
		require.NoError(t, printPage(a, entries, entryColumns, "none", next))

		var whole strings.Builder
		a = &app{out: &whole}
		a.flags.output = format
		require.NoError(t, printList(a, all, entryColumns))
		require.Equal(t, whole.String(), out.String())
	}
}

// The pages of the audit log are one list in every format, also where a run's changes are folded across them.
func TestLists_PagesAreOneList(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	code, _, stderr := command(t, "dlq", "redrive", "--topic", "orders", "--close-on-publish", "--yes", "--store",
		"dead.db", "--broker", "sqlite:queue.db")
	require.Equal(t, exitOK, code, stderr)
	for _, format := range formats {
		for _, fold := range []string{"--single", "--single=false"} {
			args := []string{"audit", "list", "--all", "--store", "dead.db", "-o", format, fold, "--limit"}
			code, paged, stderr := command(t, append(args, "1")...)
			require.Equal(t, exitOK, code, stderr)
			code, whole, stderr := command(t, append(args, "1000")...)
			require.Equal(t, exitOK, code, stderr)
			require.Equal(t, whole, paged, "%s %s", format, fold)
			require.Greater(t, strings.Count(whole, "\n"), 1, "more than a page")
		}
	}
}

// limited are the commands below one that have --limit.
func limited(parent *cobra.Command) []string {
	var names []string
	for _, cmd := range parent.Commands() {
		if cmd.Flags().Lookup("limit") != nil {
			names = append(names, strings.TrimPrefix(cmd.CommandPath(), "redrive "))
		}
		names = append(names, limited(cmd)...)
	}
	slices.Sort(names)
	return names
}
