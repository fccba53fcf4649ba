package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command of this program in the documentation is one that there is, with flags and arguments that it takes.
func TestDocs_Commands(t *testing.T) {
	seen := 0
	require.NoError(t, fs.WalkDir(os.DirFS("../.."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && path != "." && path != "docs" && !strings.HasPrefix(path, "docs/") {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".md") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join("../..", path))
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ redrive ")
			if !ok {
				continue
			}
			command, _, _ = strings.Cut(command, " #")
			command, _, _ = strings.Cut(command, " | ")
			seen++
			var out bytes.Buffer
			a := &app{in: strings.NewReader(""), out: &out, err: &out}
			cmd, rest, err := a.root().Find(words(t, command))
			require.NoError(t, err, "%s: %s", path, line)
			require.True(t, !cmd.HasSubCommands() || cmd.Name() == "topology", "%s: %s: a group of commands", path, line)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", path, line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", path, line)
		}
		return nil
	}))
	require.Greater(t, seen, 20)
}
