package main

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/duration"
)

// An impossible output format is refused before anything is changed, not after.
func TestOutput_CheckedFirst(t *testing.T) {
	workplace(t)
	look := func() string {
		code, stdout, stderr := command(t, "dlq", "list", "--status", "any", "-o", "json")
		require.Equal(t, exitOK, code, stderr)
		return stdout
	}
	before := look()
	for _, args := range [][]string{
		{"dlq", "discard", "--status", "pending", "--yes", "-o", "xml"},
		{"dlq", "discard", "--status", "pending", "--yes", "--jq", ".["},
		{"dlq", "redrive", "--status", "pending", "--yes", "-o", "csv"},
		{"dlq", "edit", "1", "--set", "a=b", "-o", "csv"},
		{"dlq", "tail", "--follow=false", "--jq", ".id"},
	} {
		code, stdout, stderr := command(t, args...)
		require.Equal(t, exitUsage, code, "%q: %s", args, stderr)
		require.Empty(t, stdout, "%q", args)
	}
	require.Equal(t, before, look())
	code, stdout, stderr := command(t, "runs", "list", "--jq", "length")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "0\n", stdout)
}

// The name of a token is used once, and is refused in words for tokens.
func TestToken_NameIsTaken(t *testing.T) {
	workplace(t)
	code, _, stderr := command(t, "token", "create", "ci")
	require.Equal(t, exitOK, code, stderr)
	code, _, stderr = command(t, "token", "create", "ci")
	require.Equal(t, exitRefused, code, stderr)
	require.Contains(t, stderr, "a token \"ci\" exists")
	require.NotContains(t, stderr, "entry")
}

// Tokens are listed in every format, without creating a store that is missing.
func TestToken_List(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	code, _, stderr := command(t, "token", "list", "--store", "mistyped.db")
	require.Equal(t, exitNotFound, code, stderr)
	require.NoFileExists(t, "mistyped.db")
	t.Setenv("REDRIVE_SERVER", "http://127.0.0.1:1")
	for _, args := range [][]string{{"token", "list"}, {"migrate"}} {
		code, _, stderr = command(t, args...)
		require.Equal(t, exitUsage, code, stderr)
		require.Contains(t, stderr, "works on the store itself, not through a server: give --store", args)
	}
	t.Setenv("REDRIVE_SERVER", "")
	seed(t, "dead.db")
	t.Setenv("REDRIVE_STORE", "dead.db")
	for _, args := range [][]string{
		{"token", "create", "ci", "--role", "operator", "--expires", "90d"},
		{"token", "create", "phone"},
		{"token", "revoke", "phone", "--actor", "ana", "--note", "lost"},
	} {
		code, _, stderr := command(t, args...)
		require.Equal(t, exitOK, code, stderr)
	}
	code, stdout, stderr := command(t, "audit", "list")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "token create  role operator, token ci")
	require.Contains(t, stdout, "token revoke  token phone", "which one")
	code, stdout, stderr = command(t, "token", "ls", "-o", "json")
	require.Equal(t, exitOK, code, stderr)
	var tokens []tokenView
	require.NoError(t, json.Unmarshal([]byte(stdout), &tokens))
	require.Len(t, tokens, 2)
	ci, phone := tokens[0], tokens[1]
	require.Equal(t, []string{"ci", "operator", "valid"}, []string{ci.Name, ci.Role, ci.State})
	require.Equal(t, 90*duration.Day, ci.ExpiresAt.Sub(ci.CreatedAt))
	require.Equal(t, []string{"phone", "viewer", "revoked", "ana"},
		[]string{phone.Name, phone.Role, phone.State, phone.RevokedBy})
	code, stdout, stderr = command(t, "audit", "list", "--action", "token revoke", "--since", "1d", "--jq", ".[].note")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "lost\n", stdout)
}

// Every flag that picks entries is enough to pick them.
func TestFilter_EachFlagPicks(t *testing.T) {
	var names []string
	choosing().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	require.Contains(t, names, "trace-id")
	for _, name := range append(names, "status") {
		var f filterFlags
		cmd := &cobra.Command{}
		f.add(&app{}, cmd)
		require.ErrorContains(t, f.idsOrFilter(cmd, nil), "which ones?")
		require.NoError(t, cmd.Flags().Set(name, "x"), name)
		require.NoError(t, f.idsOrFilter(cmd, nil), name)
	}
}

// A script whose variable is not set does not select everything, and not another store: discard --topic "$TOPIC" --yes,
// stats --store "$STORE".
func TestFlags_NeedAValue(t *testing.T) {
	tried := map[string]bool{}
	walk((&app{}).root(), func(cmd *cobra.Command) {
		require.NoError(t, cmd.ParseFlags(nil)) // adds those of all commands
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if cmd.Name() == "edit" && f.Name == "payload" || f.Value.Type() == "bool" {
				return // a payload may be empty
			}
			if cmd.Flags().Set(f.Name, "") != nil {
				return // is not a number, or not a time span
			}
			require.ErrorContains(t, checkValues(cmd), "--"+f.Name+": a value is missing", cmd.CommandPath())
			f.Changed, tried[f.Name] = false, true
		})
	})
	for _, name := range []string{"store", "server", "profile", "config", "broker", "topic", "status", "set"} {
		require.True(t, tried[name], name)
	}
}

// walk visits the commands that do something.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	if cmd.Runnable() && !cmd.HasSubCommands() && !cmd.Hidden {
		visit(cmd)
	}
	for _, sub := range cmd.Commands() {
		walk(sub, visit)
	}
}

// What anyone can write into a message stays a text for every reader of YAML. PyYAML refused "cause: ? Internal Server
// Error", which is the cause of all errors that begin with a number, and a colour's escape.
func TestYAML_TextsStayTexts(t *testing.T) {
	for text, want := range map[string]string{
		"bank: connection refused": `"bank: connection refused"`, "bank is closed": "bank is closed", "": `""`,
		"? Internal Server Error": `"? Internal Server Error"`, "?": `"?"`, "=": `"="`, "1:30": `"1:30"`, "no": `"no"`,
		"\x1b[31mred\x7f": `"\x1b[31mred\x7f"`, "two\nlines\n": `"two\nlines\n"`, "a\u0085\u2028": `"a\u0085\u2028"`,
	} {
		var out strings.Builder
		a := &app{out: &out}
		a.flags.output = "yaml"
		require.NoError(t, a.printValue(map[string]string{"cause": text}))
		require.Equal(t, "cause: "+want+"\n", out.String())
	}
}

// A time span is typed in the same way everywhere, and in days, too.
func TestAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"7d": 7 * duration.Day, "90m": 90 * time.Minute, "0s": 0} {
		var d age
		require.NoError(t, d.Set(text))
		require.Equal(t, want, time.Duration(d))
	}
	d := age(90 * duration.Day)
	require.Equal(t, "90d", d.String())
	for _, bad := range []string{"", "-1h", "soon", "7w"} {
		require.ErrorContains(t, d.Set(bad), "is not a time span such as 90m, 24h or 30d")
	}
}

// The help of a command shows its subcommands, and a typo in one gets a suggestion.
func TestGroups_AnswerSlips(t *testing.T) {
	hermetic(t)
	groups := 0
	for _, cmd := range (&app{}).root().Commands() {
		if !cmd.HasSubCommands() || cmd.Name() == "completion" {
			continue
		}
		groups++
		code, stdout, stderr := command(t, cmd.Name())
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stdout, "Available Commands", cmd.Name())
		below := cmd.Commands()[0].Name()
		code, _, stderr = command(t, cmd.Name(), below+"x")
		require.Equal(t, exitUsage, code, cmd.Name())
		require.Contains(t, stderr, "did you mean redrive "+cmd.Name()+" "+below+"?")
	}
	require.Equal(t, 6, groups)
}

// Ids that are redriven are sent as they are to where they came from: a flag that only a run knows is refused, and not
// ignored.
func TestIDs_RefuseFlagsOfAFilter(t *testing.T) {
	workplace(t)
	values := map[string]string{"canary": "1,10", "outcome-timeout": "1h", "transform": ".total=99", "stop-above": "0.5"}
	tried := 0
	for _, cmd := range (&app{}).dlqCommand().Commands() {
		if !strings.Contains(cmd.Use, "[ID...]") {
			continue
		}
		shared := choosing()
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if shared.Lookup(f.Name) != nil || f.Name == "status" || f.Name == "rate" || f.Name == "dry-run" {
				return // those of the filter itself are refused, too; the others are for ids as well
			}
			given := "--" + f.Name
			if f.NoOptDefVal == "" {
				given += "=" + cmp.Or(values[f.Name], "1")
			}
			for _, more := range []string{"--yes", "--dry-run"} {
				code, stdout, stderr := command(t, "dlq", cmd.Name(), "1", given, more)
				require.Equal(t, exitUsage, code, "%s: %s%s", given, stdout, stderr)
				require.Contains(t, stderr, "--"+f.Name+" needs a filter", given)
			}
			tried++
		})
	}
	require.GreaterOrEqual(t, tried, 10)
	code, stdout, stderr := command(t, "dlq", "list", "--status", "pending", "--jq", "length")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "5\n", stdout)
}

// A flag that says which store, configuration, broker or server is meant is never ignored: with ./redrive.yaml, "token
// create --server https://prod.example" made a token in the local store.
func TestFlags_AreUsedOrRefused(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	require.NoError(t, os.WriteFile("redrive.yaml", []byte("store: {url: dead.db}\n"), 0o600))
	server := []string{"--server", "--profile", "--token-file"}
	store := []string{"--store", "--schema", "--archive"}
	unused := map[string][]string{ // by command, or the first word of several
		"dlq": nil, "runs": nil, "audit": nil, "doctor": nil, "serve": server, "token": append(server, "--broker"),
		"migrate": append(server, "--broker"), "explain": slices.Concat(server, store),
		"topology": slices.Concat(server, store), "config validate": server, "config show": server,
	}
	for _, name := range []string{"demo", "version", "config schema", "config hash-token", "config hash-password"} {
		unused[name] = slices.Concat(server, store, []string{"--config", "--broker"})
	}
	walk((&app{}).root(), func(cmd *cobra.Command) {
		name := strings.TrimPrefix(cmd.CommandPath(), "redrive ")
		first, _, _ := strings.Cut(name, " ")
		flags, known := unused[name]
		if !known {
			flags, known = unused[first]
		}
		require.True(t, known, "%s: does it use --store, --config, --broker and --server?", name)
		args := strings.Fields(name)
		if cmd.Args != nil && cmd.Args(cmd, nil) != nil {
			args = append(args, "1", "2")[:len(args)+1+strings.Count(cmd.Use, "TOPIC...")]
		}
		for _, flag := range flags {
			code, stdout, stderr := command(t, append(args, flag, "https://prod.example")...)
			require.Equal(t, exitUsage, code, "%s %s: %s", name, flag, stdout)
			require.Contains(t, stderr, flag+" has no effect on redrive "+name)
		}
	})
	code, stdout, stderr := command(t, "token", "list", "--jq", "length")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, "0\n", stdout)
	for _, given := range [][]string{
		{"--token-file", "x"}, {"--token-file", "x", "--store", "dead.db"}, {"--server", "https://prod.example", "--schema", "x"},
	} {
		code, _, stderr := command(t, append(given, "dlq", "list")...)
		require.Equal(t, exitUsage, code, given)
		require.Contains(t, stderr, "are for a server", given)
	}
}

// What -o and --jq ask for is printed, or refused before anything is changed, by every command.
func TestOutput_IsDataOrRefused(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	require.NoError(t, os.WriteFile("redrive.yaml",
		[]byte("{store: {url: dead.db}, brokers: {sqlite: {url: 'sqlite:queue.db'}}}"), 0o600))
	code, before, stderr := command(t, "dlq", "export", "--status", "any")
	require.Equal(t, exitOK, code, stderr)
	tried := map[string]bool{}
	try := func(line string) (int, string, string) {
		cmd, _, err := (&app{}).root().Find(words(t, line))
		require.NoError(t, err)
		tried[cmd.CommandPath()] = true
		return command(t, append([]string{"-o", "json"}, words(t, line)...)...)
	}
	for _, line := range []string{
		"version", "demo --speed 0", "serve --config none", "migrate", "migrate --from-table x",
		"token create ci", "token revoke ci", "config schema", "config validate redrive.yaml",
		"config hash-token", "config hash-password", "topology plan sqlite orders",
		"topology check sqlite orders", "topology apply sqlite orders", "dlq show 1 --raw", "dlq export",
		"dlq import x", "dlq purge --yes", "dlq purge --dry-run", "dlq release 1 --note x", "dlq mute x",
		"dlq unmute x", "dlq redrive 1", "dlq resolve 1", "dlq resolve --topic orders --yes", "dlq discard 1",
		"dlq park 1 --dry-run=false", "dlq restore 1",
	} {
		code, stdout, stderr := try(line)
		require.Equal(t, exitUsage, code, "%s: %s", line, stderr)
		require.Contains(t, stderr, "prints no data", line)
		require.Empty(t, stdout, line)
	}
	code, after, stderr := command(t, "dlq", "export", "--status", "any")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, before, after)
	for _, line := range []string{
		"dlq list", "dlq show 1", "dlq groups", "dlq stats", "dlq report",
		"dlq tail --follow=false -n 1 -o jsonl", "dlq mutes", "dlq edit 1 --set a=b", "dlq edit 1 --set a=b",
		"dlq edit 1 --set a=b --dry-run", "dlq redrive --topic orders --dry-run", "dlq redrive 1 --dry-run",
		"dlq resolve 1 --dry-run", "dlq discard --topic orders --dry-run", "dlq park 1 --dry-run",
		"dlq restore 1 --dry-run", "dlq redrive --topic orders --yes --detach --id a", "runs list",
		"runs show a", "runs pause a", "runs watch a", "runs adjust a --rate 5", "runs cancel a",
		"runs resume b", "runs approve b", "runs reject b", "audit list", "token list",
		"explain sqlite orders", "doctor", "config show",
	} {
		code, stdout, stderr := try(line)
		if strings.HasSuffix(line, " b") {
			require.Equal(t, exitNotFound, code, "%s: %s", line, stderr)
			continue
		}
		require.Contains(t, []int{exitOK, exitPartial}, code, "%s: %s", line, stderr)
		require.True(t, json.Valid([]byte(stdout)), "%s: %s%s", line, stdout, stderr)
	}
	walk((&app{}).root(), func(cmd *cobra.Command) { require.True(t, tried[cmd.CommandPath()], cmd.CommandPath()) })
	code, _, stderr = command(t, "config", "validate", "redrive.yaml", "--config", "other.yaml")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "one file or the other")
}

// A share of 0 was the default of 0.1, and NaN was below every bound.
func TestFlags_Bounds(t *testing.T) {
	hermetic(t)
	for given, want := range map[string]string{
		"--stop-above 0":   "--stop-above: must be above 0 and at most 1; 0.0001 stops at nearly any failure",
		"--stop-above 1.1": "--stop-above: must be above 0",
		"--rate NaN":       "--rate: must be a number, and not negative",
		"--rate -1":        "--rate: must be a number, and not negative",
		"--rate fast":      `--rate: "fast" is not a number`,
	} {
		for _, line := range []string{"dlq redrive --topic orders ", "runs adjust later "} {
			code, _, stderr := command(t, strings.Fields(line+given+" --store none.db")...)
			require.Equal(t, exitUsage, code, line+given)
			require.Contains(t, stderr, want, line+given)
		}
	}
}
