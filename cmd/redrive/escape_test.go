package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// Anyone can write messages: no format that is data contains what would control or mislead a terminal, and JSON still
// means the same text.
func TestOutput_EscapesWhatControlsATerminal(t *testing.T) {
	const hostile = "a\u001b[2J\u007f\u0085\u009b2J\u061c\u200e\u200f\u202a\u202e\u2066\u2069é€𝄞"
	for _, tc := range []struct{ output, jq string }{{"json", ""}, {"jsonl", ""}, {"yaml", ""}, {"json", "{a: .text}"}} {
		var out bytes.Buffer
		a := &app{out: &out}
		a.flags.output, a.flags.jq = tc.output, tc.jq
		require.NoError(t, a.printOne(map[string]string{"text": hostile}, nil))
		require.NotRegexp(t, "[\\x{00}-\\x{09}\\x{0b}-\\x{1f}\\x{7f}-\\x{9f}\\x{61c}\\x{200e}\\x{200f}\\x{202a}-\\x{202e}\\x{2066}-\\x{2069}]",
			out.String(), tc)
		if tc.output != "yaml" {
			var read map[string]string
			require.NoError(t, json.Unmarshal(out.Bytes(), &read), out.String())
			for _, text := range read {
				require.Equal(t, hostile, text)
			}
		}
	}
}
