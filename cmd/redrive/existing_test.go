package main

import (
	"os"
	"path/filepath"
	"strings"
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

// Doctor changes nothing: it makes no store and no queue, and updates no tables.
func TestDoctor_MakesNoStore(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	code, stdout, stderr := command(t, "doctor", "--store", "daed.db")
	require.Equal(t, exitError, code, stdout+stderr)
	require.Contains(t, stdout, "there is no store daed.db")
	require.NoFileExists(t, "daed.db")
	require.NoError(t, os.WriteFile("old.db", nil, 0o600)) // another program's database
	code, stdout, stderr = command(t, "doctor", "--store", "old.db")
	require.Equal(t, exitError, code, stdout+stderr)
	require.Contains(t, stdout, "the tables do not exist")
	require.Contains(t, stdout, "redrive migrate")
	seed(t, "dead.db")
	code, stdout, stderr = command(t, "doctor", "--store", "dead.db", "--broker", "sqlite:qeue.db")
	require.Equal(t, exitError, code, stdout+stderr)
	require.Contains(t, stdout, "there is no file qeue.db")
	require.NoFileExists(t, "qeue.db")
	code, stdout, stderr = command(t, "doctor", "--store", "dead.db", "--broker", "sqlite:old.db")
	require.Equal(t, exitError, code, stdout+stderr)
	require.Contains(t, stdout, "the queue's tables cannot be read")
	data, err := os.ReadFile("old.db")
	require.NoError(t, err)
	require.Zero(t, strings.Count(string(data), "CREATE TABLE"))
}

// Doctor examines one system: with a server its store, brokers and sources, and not those of a file that lies here.
func TestDoctor_ThroughServer(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	t.Setenv("REDRIVE_SERVER", serveSeed(t, ""))
	require.NoError(t, os.WriteFile("redrive.yaml",
		[]byte("{store: {url: other.db}, brokers: {elsewhere: {url: 'amqp://127.0.0.1:1/'}}}"), 0o600))
	code, stdout, stderr := command(t, "doctor", "--jq", ".[] | [.what, .severity, .finding] | @csv")
	require.Equal(t, exitOK, code, stdout+stderr)
	require.Contains(t, stdout, "\"broker sqlite\",\"ok\"")
	require.Contains(t, stdout, "\"store\",\"ok\"")
	require.Contains(t, stdout, "5 pending, 5 in all")
	require.NotContains(t, stdout, "elsewhere")
	t.Setenv("REDRIVE_SERVER", "http://127.0.0.1:1")
	code, stdout, stderr = command(t, "doctor")
	require.Equal(t, exitError, code, stdout+stderr)
	require.Contains(t, stdout, "the server does not answer")
}

// A driver's connection string used to be the path of a file, and was shown with its password.
func TestStore_RefusesADSN(t *testing.T) {
	hermetic(t)
	for _, dsn := range []string{"host=db user=app password=hunter2 dbname=app", "root:hunter2@tcp(db:3306)/app"} {
		for _, args := range [][]string{{"dlq", "list"}, {"migrate"}, {"doctor"}} {
			code, stdout, stderr := command(t, append(args, "--store", dsn)...)
			require.NotZero(t, code, args)
			require.Contains(t, stdout+stderr, "connection string", args)
			require.NotContains(t, stdout+stderr, "hunter2", args)
		}
	}
}
