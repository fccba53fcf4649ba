package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command that only uses brokers needs no store, and knows the mode, the group and the names of the service.
func TestTopology_NeedsNoStore(t *testing.T) {
	hermetic(t)
	file := filepath.Join(t.TempDir(), "redrive.yaml")
	require.NoError(t, os.WriteFile(file, []byte("brokers:\n  rabbit:\n    url: amqp://guest@127.0.0.1:1/?declare=adopt\n"+
		"    group: invoice-service\n    naming: {preset: service-bus, project: easyweek}\n"), 0o600))
	for _, args := range [][]string{{"topology", "plan", "rabbit", "invoice.*"}, {"explain", "rabbit", "invoice.*"}} {
		var out, faults bytes.Buffer
		require.Zero(t, run(append(args, "--config", file), strings.NewReader(""), &out, &faults), faults.String())
		require.Contains(t, out.String(), "easyweek.invoice-service")
		require.Contains(t, out.String(), "if missing; otherwise as it is")
	}
	var out, faults bytes.Buffer
	require.NotZero(t, run([]string{"list", "--config", file}, strings.NewReader(""), &out, &faults))
}
