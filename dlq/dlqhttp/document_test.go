package dlqhttp_test

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the OpenAPI document anew")

// The committed document is what the handler serves. go test ./dlq/dlqhttp -update writes it anew; then run go generate ./dlq/dlqclient.
func TestDocument_IsCommitted(t *testing.T) {
	h := newServer(t).handler
	for file, make := range map[string]func() ([]byte, error){"openapi.yaml": h.OpenAPI, "../dlqclient/openapi-3.0.yaml": h.OpenAPI30} {
		text, err := make()
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile(file, text, 0o644))
			continue
		}
		committed, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(committed), string(text), "%s is not what the program serves: go test ./dlq/dlqhttp -update", file)
	}
}
