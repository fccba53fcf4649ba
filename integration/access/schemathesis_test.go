package access_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// schemathesis returns the program that integration/install.sh has installed in the cache, or that of $SCHEMATHESIS.
func schemathesis(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SCHEMATHESIS")
	if path == "" {
		cache, err := os.UserCacheDir()
		require.NoError(t, err)
		path = filepath.Join(cache, "redrive", "schemathesis", "bin", "schemathesis")
	}
	if _, err := os.Stat(path); err != nil {
		const missing = "schemathesis is not installed: run integration/install.sh schemathesis"
		if os.Getenv("REQUIRE_SERVICES") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return path
}

// A fuzzer that knows OpenAPI finds only responses that the document describes: no server error, and no other status,
// type or body.
func TestSchemathesis(t *testing.T) {
	t.Parallel()
	program := schemathesis(t)
	base := serve(t, "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // so that a failing test ends
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "run", base+"/api/v1/openapi.json", "--no-color", "--seed=1",
		"--max-examples=15",
		"--max-time=60", "--phases=examples,coverage,fuzzing", "--exclude-path=/runs/{id}/events", // does not end
		"--exclude-path=/entries/import", // lines, which it cannot generate
		"--request-timeout=30",
		"--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance",
		"--warnings=off")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "No issues found")
}
