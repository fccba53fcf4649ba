package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
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
