package command_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

// A schema is spelled the same in the URL, in the configuration and in a flag. All of them open the same store, and
// never another one in the same database.
func TestSchema_OneSpelling(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	plain := fmt.Sprintf("store: {url: %q}", url)
	ways := map[string]func(args ...string) result{
		"URL": func(args ...string) result {
			return redrive(t, fmt.Sprintf("store: {url: %q}", url+"&schema=payroll&archive=old"), args...)
		},
		"configuration": func(args ...string) result {
			return redrive(t, fmt.Sprintf("store: {url: %q, schema: payroll, archive: old}", url), args...)
		},
		"flags": func(args ...string) result {
			return redrive(t, plain, append(args, "--schema", "payroll", "--archive", "old")...)
		},
	}
	made := ways["flags"]("migrate")
	require.Zero(t, made.code, made.stderr)
	for name, way := range ways {
		listed := way("dlq", "list")
		require.Zero(t, listed.code, "%s: %s", name, listed.stderr)
	}
	other := redrive(t, plain, "dlq", "list")
	require.NotZero(t, other.code)
	require.Contains(t, other.stderr, "the tables do not exist")
}
