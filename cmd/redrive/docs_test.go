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

// Every command of this program in the documentation exists, with its flags and arguments.
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
			require.False(t, cmd.HasSubCommands(), "%s: %s: a group of commands", path, line)
			require.NoError(t, cmd.ParseFlags(rest), "%s: %s", path, line)
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()), "%s: %s", path, line)
		}
		return nil
	}))
	require.Greater(t, seen, 20)
}

// The file for --profile, as docs/api.md shows it, is accepted by the command.
func TestDocs_Profiles(t *testing.T) {
	hermetic(t)
	page, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	_, block, found := strings.Cut(string(page), "```yaml\nprofiles:")
	require.True(t, found)
	block, _, _ = strings.Cut(block, "```")
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("rdr_x\n"), 0o600))
	file := filepath.Join(dir, "profiles.yaml")
	require.NoError(t, os.WriteFile(file, []byte("profiles:"+strings.ReplaceAll(block, "/run/secrets/redrive", secret)),
		0o600))
	t.Setenv("REDRIVE_PROFILES", file)
	prod, err := loadProfile("prod")
	require.NoError(t, err)
	require.Equal(t, "https://ops.example:8321", prod.Server)
	require.Equal(t, "rdr_x", strings.TrimSpace(prod.Token))
	test, err := loadProfile("test")
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:8321", test.Server)
}
