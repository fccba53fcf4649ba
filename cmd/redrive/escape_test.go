package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// unprintable is what would control or mislead a terminal.
const unprintable = "[\\x{00}-\\x{08}\\x{0b}-\\x{1f}\\x{7f}-\\x{9f}\\x{61c}\\x{200e}\\x{200f}\\x{202a}-\\x{202e}" +
	"\\x{2066}-\\x{2069}]"

const hostile = "a\u001b[2J\u007f\u0085\u009b2J\u061c\u200e\u200f\u202a\u202e\u2066\u2069é€𝄞"

// Anyone can write messages: no format that is data contains what would control or mislead a terminal, and JSON still
// means the same text.
func TestOutput_EscapesWhatControlsATerminal(t *testing.T) {
	for _, tc := range []struct{ output, jq string }{{"json", ""}, {"jsonl", ""}, {"yaml", ""}, {"json", "{a: .text}"}} {
		var out bytes.Buffer
		a := &app{out: &out}
		a.flags.output, a.flags.jq = tc.output, tc.jq
		require.NoError(t, a.printOne(map[string]string{"text": hostile}, nil))
		require.NotRegexp(t, unprintable, out.String(), tc)
		if tc.output != "yaml" {
			var read map[string]string
			require.NoError(t, json.Unmarshal(out.Bytes(), &read), out.String())
			for _, text := range read {
				require.Equal(t, hostile, text)
			}
		}
	}
}

// The same holds for what is text: whatever a message, its headers or another operator calls itself.
func TestOutput_TextControlsNoTerminal(t *testing.T) {
	hermetic(t)
	store := "sqlite:" + filepath.Join(t.TempDir(), "dead.db")
	letters, err := dlq.Open(t.Context(), store, dlq.WithoutSpool())
	require.NoError(t, err)
	m := message.NewMessage(hostile, []byte(`"`+hostile+`"`))
	m.Metadata = message.Metadata{envelope.KeyEvent: hostile, hostile: hostile}
	require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: m, Reason: hostile, Class: hostile, Rule: hostile, Handler: hostile, Attempts: 4, At: time.Now(),
		Err:       envelope.Error{Message: hostile, Code: hostile, Trace: hostile},
		Origin:    envelope.Origin{Broker: "sqlite", Topic: hostile, Consumer: hostile, Exchange: hostile, RoutingKey: hostile},
		Collected: envelope.Collected{Broker: hostile, From: hostile, Format: "plain"},
	}))
	require.NoError(t, letters.Close())
	queue := filepath.Join(t.TempDir(), "queue.db")
	seedQueue(t, queue)
	for _, args := range []string{
		"dlq list", "dlq list -o wide", "dlq list -o csv", "dlq tail -f=false", "dlq groups -o wide", "dlq stats",
		"dlq report", "dlq show 1", "dlq redrive 1", "dlq redrive 1 --dry-run", "dlq redrive --status any --dry-run",
		"dlq redrive --status any --yes", "runs list -o wide", "audit list --single -o wide", "doctor",
	} {
		fields := append(strings.Fields(args), "--store", store)
		if strings.HasPrefix(args, "dlq redrive") {
			fields = append(fields, "--broker", fmt.Sprint("sqlite:", queue), "--actor", hostile)
		}
		_, stdout, stderr := command(t, fields...)
		require.NotRegexp(t, unprintable, stdout+stderr, args)
	}
}
