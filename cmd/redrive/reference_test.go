package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// docs/command.md is generated from the commands' help; -update writes it.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "command.md")
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	var b strings.Builder
	b.WriteString("# The redrive command\n\n" +
		"This page is made from the command's own help: `go test ./cmd/redrive -run TestReference -update`.\n\n" +
		root.Long + "\n\n```\n" + examples(root) + "```\n\nFlags of every command:\n\n```\n" +
		root.PersistentFlags().FlagUsages() +
		"```\n\nFlags that choose dead letters, which each command below with FILTER in its line has (what it takes " +
		"without --status stands with the command):\n\n```\n" + choosing().FlagUsages() + "```\n")
	reference(t, &b, root)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
		return
	}
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(page), b.String(), "go test ./cmd/redrive -run TestReference -update")
}

// reference describes the commands below one, in the order of its help. Every one needs a description.
func reference(t *testing.T, b *strings.Builder, parent *cobra.Command) {
	t.Helper()
	for _, cmd := range parent.Commands() {
		if cmd.Name() == "help" || cmd.Hidden || parent.Name() == "completion" {
			continue
		}
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		depth := strings.Count(cmd.CommandPath(), " ") + 1
		fmt.Fprintf(b, "\n%s %s\n\n", strings.Repeat("#", depth), cmd.CommandPath())
		if !cmd.Runnable() { // a topic of help
			b.WriteString("```\n" + strings.TrimSpace(cmd.Long) + "\n```\n")
			continue
		}
		text := cmd.Short + "."
		if long := strings.TrimSpace(cmd.Long); long != "" && cmd.Name() != "completion" {
			text = long
		}
		line, own := cmd.UseLine(), cmd.LocalNonPersistentFlags()
		if shared := choosing(); has(own, shared) {
			line, own = strings.Replace(line, "[flags]", "[FILTER] [flags]", 1), without(own, shared)
		}
		b.WriteString(text + "\n\n```\n" + line + "\n```\n")
		if flags := own.FlagUsages(); flags != "" {
			b.WriteString("\n```\n" + flags + "```\n")
		}
		if list := examples(cmd); list != "" {
			b.WriteString("\n```\n" + list + "```\n")
		}
		reference(t, b, cmd)
	}
}

// choosing are the flags that choose dead letters, which many commands have.
func choosing() *pflag.FlagSet {
	var f filterFlags
	cmd := &cobra.Command{}
	f.add(&app{}, cmd)
	return without(cmd.Flags(), pick(cmd.Flags(), "status")) // its default is the command's own
}

// pick returns the flags of these names.
func pick(flags *pflag.FlagSet, names ...string) *pflag.FlagSet {
	picked := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, name := range names {
		picked.AddFlag(flags.Lookup(name))
	}
	return picked
}

// has reports whether all of the shared flags are among flags.
func has(flags, shared *pflag.FlagSet) bool {
	all := true
	shared.VisitAll(func(f *pflag.Flag) { all = all && flags.Lookup(f.Name) != nil })
	return all
}

// without returns the flags except those that are shared, word for word.
func without(flags, shared *pflag.FlagSet) *pflag.FlagSet {
	rest := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.VisitAll(func(f *pflag.Flag) {
		if same := shared.Lookup(f.Name); same == nil || same.Usage != f.Usage {
			rest.AddFlag(f)
		}
	})
	return rest
}

// examples are a command's examples as lines of a shell.
func examples(cmd *cobra.Command) string {
	var b strings.Builder
	for line := range strings.Lines(cmd.Example) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// Every example of the help is an existing command with existing flags.
func TestExamples(t *testing.T) {
	hermetic(t)
	seen := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		for line := range strings.Lines(examples(cmd)) {
			line = strings.ReplaceAll(strings.TrimSpace(line), `"`, "'")
			line, _, _ = strings.Cut(line, "$(") // a command within
			line, _, _ = strings.Cut(line, " <")
			line, _, _ = strings.Cut(line, " >")
			args, isOurs := strings.CutPrefix(line, "redrive ")
			if !isOurs {
				continue
			}
			seen++
			root := (&app{}).root()
			found, rest, err := root.Find(words(t, args))
			require.NoError(t, err, line)
			require.NotEqual(t, root, found, line)
			rest = append(rest, "x") // for a flag whose value was a command
			err = found.ParseFlags(rest)
			require.NoError(t, err, line)
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
	require.Greater(t, seen, 30)
}
