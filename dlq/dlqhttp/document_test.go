package dlqhttp_test

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite the OpenAPI document")

// The committed document is what the handler serves. go test ./dlq/dlqhttp -update rewrites it.
func TestDocument_IsCommitted(t *testing.T) {
	const file = "openapi.yaml"
	text, err := newServer(t).handler.OpenAPI()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, text, 0o600))
	}
	committed, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(committed), string(text), "%s is not what the program serves: go test ./dlq/dlqhttp -update",
		file)
}
