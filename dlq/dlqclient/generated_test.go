package dlqclient_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The client is what the generator made of the document that is here.
func TestGenerated(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("generated.sum")
	require.NoError(t, err)
	files := 0
	for line := range strings.Lines(string(sums)) {
		sum, file, ok := strings.Cut(strings.TrimSpace(line), "  ")
		require.True(t, ok, line)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		digest := sha256.Sum256(data)
		require.Equal(t, sum, hex.EncodeToString(digest[:]), "%s was changed since: go generate ./dlq/dlqclient", file)
		files++
	}
	require.Equal(t, 2, files)
}
