package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// The weekly report, for people and for programs.
func TestReport(t *testing.T) {
	hermetic(t)
	path := filepath.Join(t.TempDir(), "dead.db")
	letters, err := dlq.Open(t.Context(), "sqlite:"+path, dlq.WithoutSpool())
	require.NoError(t, err)
	m := message.NewMessage("m-1", nil)
	m.Metadata[envelope.KeyMessageID] = "m-1"
	require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: "bank: timeout"}, Handler: "pay",
		Origin: envelope.Origin{Topic: "orders"}, Attempts: 4, At: time.Now(),
	}))
	require.NoError(t, letters.Close())

	var out, faults bytes.Buffer
	require.Equal(t, exitOK, run([]string{"dlq", "report", "--store", path}, strings.NewReader(""), &out, &faults),
		faults.String())
	require.Contains(t, out.String(), "\n1 arrived, after 0 in the 7 days before.\n\n## New\n")
	require.Contains(t, out.String(), "\n| bank: timeout | pay | 1 | 0 | 1 | ")
	out.Reset()
	require.Equal(t, exitOK, run([]string{"dlq", "report", "--store", path, "--since", "24h", "--jq", ".new[].cause"},
		strings.NewReader(""), &out, &faults))
	require.Equal(t, "bank: timeout\n", out.String())
	require.Equal(t, exitUsage, run([]string{"dlq", "report", "--store", path, "--since", "10m"}, strings.NewReader(""),
		&out, &faults))
}
