package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// docs/command.md is what the commands say of themselves; -update writes it.
func TestReference(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "command.md")
	root := (&app{}).root()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	var b strings.Builder
	b.WriteString("# The redrive command\n\n" +
		"This page is made from the command's own help: `go test ./cmd/redrive -run TestReference -update`.\n\n" +
		root.Long + "\n\n```\n" + examples(root) + "```\n\nFlags of every command:\n\n```\n" + root.PersistentFlags().FlagUsages() + "```\n")
	reference(t, &b, root)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
		return
	}
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(page), b.String(), "go test ./cmd/redrive -run TestReference -update")
}

// reference describes the commands below one, in the order of its help. Every one has to say what it does.
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
		b.WriteString(text + "\n\n```\n" + cmd.UseLine() + "\n```\n")
		if flags := cmd.LocalNonPersistentFlags().FlagUsages(); flags != "" {
			b.WriteString("\n```\n" + flags + "```\n")
		}
		if list := examples(cmd); list != "" {
			b.WriteString("\n```\n" + list + "```\n")
		}
		reference(t, b, cmd)
	}
}

// examples are a command's examples as lines of a shell.
func examples(cmd *cobra.Command) string {
	var b strings.Builder
	for line := range strings.Lines(cmd.Example) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// Every example of the help is a command with flags that there are.
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
