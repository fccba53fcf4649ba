package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only serve, demo, import and migrate create a store: a mistyped path is an error, and does not become an empty store.
func TestStore_ReadingCreatesNone(t *testing.T) {
	for name, args := range map[string][]string{
		"list": {"dlq", "list"}, "stats": {"dlq", "stats"}, "purge": {"dlq", "purge", "--yes"}, "runs": {"runs", "list"},
		"export": {"dlq", "export"},
	} {
		path := filepath.Join(t.TempDir(), "daed.db")
		code, _, stderr := command(t, append(args, "--store", path)...)
		require.NotZero(t, code, name)
		require.Contains(t, stderr, "daed.db", name)
		require.NoFileExists(t, path, name)
	}
	old := filepath.Join(t.TempDir(), "old.db") // another program's database
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	code, _, stderr := command(t, "dlq", "list", "--store", old)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "the tables do not exist")
	for given, want := range map[string]string{
		"a.db": "a.db?migrate=false", "sqlite:a.db?synchronous=normal": "sqlite:a.db?synchronous=normal&migrate=false",
		"postgres://db/app?x-migrate=true": "postgres://db/app?x-migrate=true",
	} {
		require.Equal(t, want, withoutMigration(given))
	}
}
